// Makes wrong backwards on purpose, on real ranks: changes a native call as a subject
// "mutant:STEP=WHAT+..." says (model/subject_text.h). Used by tests of the diagnosis.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/program.h"
#include "model/subject_text.h"
#include "rank/group_connections.h"
#include "rank/rank_call.h"

namespace distgrad {

// Makes the mutated calls of one case on one rank.
class MutatedCalls {
 public:
  // Program and connections must outlive this. Throws std::invalid_argument for a malformed
  // subject.
  MutatedCalls(const Program&, std::string_view subject, int rank, GroupConnections&);

  // Must be called on every rank before a step's call; `site` is that of the native call. To act as
  // another group or root would, it makes a call of that group or root in forward.
  void prepare(const std::shared_ptr<CallSite>& site, const Step& step, const at::Tensor& operand);
  // Must be called after the step's call.
  void note(const std::shared_ptr<CallSite>& site, const Step& step, const at::Tensor& output);

 private:
  struct Made {
    std::shared_ptr<CallSite> site;
    at::Tensor output;
  };

  void apply(const Mutation&, CallSite& site, const at::Tensor& operand);
  Backward of_rule(const std::string& name, const CollectiveCall&) const;
  Backward of_other_call(const Mutation&, const CollectiveCall&, const at::Tensor& operand);

  const Program& program_;
  std::vector<Mutation> mutations_;
  int rank_;
  GroupConnections& connections_;
  std::map<std::string, Made> made_;  // steps whose gradients other calls get
};

}  // namespace distgrad
