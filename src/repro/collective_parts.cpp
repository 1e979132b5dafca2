#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/version.h"
#include "model/libraries.h"
#include "model/subject_text.h"
#include "repro/call_text.h"
#include "repro/program_facts.h"
#include "repro/python_source.h"
#include "repro/python_text.h"
#include "repro/script_parts.h"

namespace distgrad {
namespace {

// Numbers the later ones of several different definitions of one name, and joins equal ones.
class Definitions {
 public:
  // `source` has $Name in place of the name.
  std::string add(const std::string& name, const std::string& source) {
    const auto known =
        std::find_if(all_.begin(), all_.end(), [&](const auto& d) { return d.source == source; });
    if (known != all_.end()) return known->name;
    const auto same =
        std::count_if(all_.begin(), all_.end(), [&](const auto& d) { return d.base == name; });
    all_.push_back({name, same == 0 ? name : name + std::to_string(same + 1), source});
    return all_.back().name;
  }

  std::vector<std::string> sources() const {
    std::vector<std::string> sources;
    for (const Definition& d : all_) {
      sources.push_back(d.source);
      sources.back().replace(d.source.find("$Name"), 5, d.name);
    }
    return sources;
  }

 private:
  struct Definition {
    std::string base, name, source;
  };
  std::vector<Definition> all_;
};

std::string summary_of_rule(const std::string& rule) {
  for (const BackwardRuleRow& row : backward_rules())
    if (row.name == rule) return std::string(row.summary);
  return "the adjoint: what the chain rule asks for";
}

std::string source_of_subject(const std::string& subject) {
  for (const SubjectRow& row : subjects())
    if (row.name == subject && row.how == "rules")
      return "after " + std::string(row.source.substr(row.source.find("after ") + 6)) + "; ";
  return "";
}

// Returns which tensors backward uses, such as "x, y".
std::string saved(const std::set<std::string>& words) {
  std::string names = words.contains("x") ? "x" : "";
  if (words.contains("y")) names += names.empty() ? "y" : ", y";
  return names;
}

std::string backward_lines(const CollectiveCall& call, const std::string& rule) {
  const std::string kind(traits(call.kind).name);
  if (rule == "raises")
    return "raise NotImplementedError(\"the backward of " + kind + " is not implemented\")\n";
  const std::string dx = backward_text(call, rule);
  if (dx.empty()) throw UserError("repro: there is no Python source for the rule " + rule);
  const std::set<std::string> words = Words(dx).names;
  const std::string keeps = saved(words);
  std::string text = words.contains("group") ? "group = ctx.group\n" : "";
  if (!keeps.empty())
    text += fmt::format("{}{} = ctx.saved_tensors\n", keeps, keeps.size() == 1 ? "," : "");
  return text + "return " + dx + (call.group.empty() ? "" : ", None") + "\n";
}

std::string function_class(const CollectiveCall& call, const std::string& subject,
                           const std::string& rule) {
  const std::string backward = backward_lines(call, rule);
  const std::set<std::string> words = Words(backward).names;
  const std::string keeps = saved(words), group = call.group.empty() ? "" : ", group";
  const std::string forward =
      fmt::format("{}_forward(ctx, x{}{})\n", traits(call.kind).name, group, options_text(call));
  std::string text =
      fmt::format("class $Name(torch.autograd.Function):\n    \"\"\"{}backward: {}.\"\"\"\n\n",
                  source_of_subject(subject), summary_of_rule(rule));
  text += fmt::format("    @staticmethod\n    def forward(ctx, x{}):\n", group);
  if (words.contains("group")) text += "        ctx.group = group\n";
  if (keeps.empty())
    text += "        return " + forward;
  else
    text += fmt::format("        y = {}        ctx.save_for_backward({})\n        return y\n",
                        forward, keeps);
  return text + "\n    @staticmethod\n    def backward(ctx, g):\n" + indented_python(backward, 2);
}

// Writes the call of a function up to where its operand stands.
std::string called(const std::string& function, const std::string& around,
                   const CollectiveCall& call) {
  if (around == "compile") return "compiled(" + function + ")(";
  if (around != "async") return function + "(";
  return fmt::format("waited_for({}, {}, ", function,
                     traits(call.kind).only_on_root ? call.root + 1 : call.root);
}

std::string foreign_function(const CollectiveCall& call, const std::string& body) {
  return fmt::format("def $Name(x{}):\n    \"\"\"The implementation under test.\"\"\"\n{}",
                     call.group.empty() ? "" : ", group", indented_python(body, 1));
}

// Takes torch's version into account, which decides some rows.
std::string rule_for(const std::string& subject, const CollectiveCall& call) {
  const auto rule = rule_of(subject, call.kind, call.op, kTorchVersion);
  if (rule) return std::string(*rule);
  throw UserError(fmt::format("repro: {} does not offer {}: there is nothing to show", subject,
                              traits(call.kind).name));
}

std::string operand_text(const std::string& text, bool attach, bool depends) {
  if (!attach) return text;
  return depends ? "attached(" + text + ")" : "(" + text + ").detach()";
}

// Writes the calls of collectives in the real run.
class RealCalls {
 public:
  RealCalls(const ReproCase& repro, bool attach) : repro_(repro), attach_(attach) {}

  // `step` is the step's name before any renaming.
  std::string call(const std::string& step, const CollectiveCall& spec, bool on_gradient) {
    std::string subject = subject_for(repro_.which.subject, spec.kind), around;
    if (const auto found = repro_.foreign.calls.find(step); found != repro_.foreign.calls.end()) {
      const ReproCase::Foreign::Call& foreign = found->second;
      around = foreign.around;
      subject = foreign.builtin;
      if (subject.empty()) return foreign_call(spec, foreign);
    }
    const std::string rule = rule_for(subject, spec);
    return rule == "dispatcher" ? plain_call(spec, around)
                                : class_call(spec, subject, rule, around, on_gradient);
  }

  std::vector<std::string> definitions() const { return made_.sources(); }

 private:
  static std::string group_argument(const CollectiveCall& call) {
    return call.group.empty() ? "" : fmt::format(", process_groups[\"{}\"]", call.group);
  }

  std::string foreign_call(const CollectiveCall& spec, const ReproCase::Foreign::Call& foreign) {
    const std::string name =
        made_.add(std::string(traits(spec.kind).name), foreign_function(spec, foreign.text));
    return called("plainly(" + name + ")", foreign.around, spec) + spec.operand.text +
           group_argument(spec) + ")";
  }

  std::string plain_call(const CollectiveCall& spec, const std::string& around) {
    const CollectiveTraits& kind = traits(spec.kind);
    return called("plain_" + std::string(kind.name), around, spec) + spec.operand.text +
           group_argument(spec) + plain_options_text(spec) +
           (around == "async" && kind.has_async ? ", async_op=True)" : ")");
  }

  std::string class_call(const CollectiveCall& spec, const std::string& subject,
                         const std::string& rule, const std::string& around, bool on_gradient) {
    const std::string name =
        made_.add(camel_case(traits(spec.kind).name), function_class(spec, subject, rule));
    return called(name + ".apply", around, spec) +
           operand_text(spec.operand.text, attach_, on_gradient) + group_argument(spec) + ")";
  }

  const ReproCase& repro_;
  bool attach_;
  Definitions made_;
};

}  // namespace

CollectiveParts collective_parts(const ReproCase& repro, const Program& program, bool attach) {
  CollectiveParts parts;
  RealCalls real(repro, attach);
  const std::vector<bool> on_gradient = depend_on_gradient(program);
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const CollectiveCall* spec = program.steps[i].collective();
    parts.calls.push_back(spec ? real.call(repro.program.steps[i].name, *spec, on_gradient[i])
                               : "");
  }
  parts.definitions = real.definitions();
  return parts;
}

}  // namespace distgrad
