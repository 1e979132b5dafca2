// Wrong backwards on purpose, on real ranks: makes of a native call what a subject
// "mutant:STEP=WHAT+..." says of its step (model/subject_text.h). For tests of the diagnosis.
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

// Of one case on one rank.
class MutatedCalls {
 public:
  // Program and connections outlive this. Throws std::invalid_argument for what is no such text.
  MutatedCalls(const Program&, std::string_view subject, int rank, GroupConnections&);

  // Before the call of a step, whose site is that of the native call. Every rank comes by, since
  // what another group or root would do is prepared by a call of that, forward.
  void prepare(const std::shared_ptr<CallSite>& site, const Step& step, const at::Tensor& operand);
  // After it.
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
  std::map<std::string, Made> made_;  // the steps whose gradients others get
};

}  // namespace distgrad
