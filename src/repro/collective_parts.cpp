#include <fmt/format.h>

#include <algorithm>
#include <regex>

#include "base/error.h"
#include "base/version.h"
#include "model/libraries.h"
#include "model/subject_text.h"
#include "report/words.h"
#include "repro/call_source.h"
#include "repro/program_facts.h"
#include "repro/python_text.h"
#include "repro/script_parts.h"

namespace distgrad {
namespace {

// "AllReduce" of "all_reduce".
std::string class_name(std::string_view kind) {
  std::string name;
  bool upper = true;
  for (const char c : kind) {
    if (c != '_') name += upper ? static_cast<char>(c - 'a' + 'A') : c;
    upper = c == '_';
  }
  return name;
}

// Of several definitions that differ, the later ones are numbered; equal ones are one.
class Definitions {
 public:
  // `source` has $Name where the name stands.
  std::string add(const std::string& name, const std::string& source) {
    const auto known =
        std::find_if(all_.begin(), all_.end(), [&](const auto& d) { return d.source == source; });
    if (known != all_.end()) return known->name;
    const auto same =
        std::count_if(all_.begin(), all_.end(), [&](const auto& d) { return d.base == name; });
    all_.push_back({name, same == 0 ? name : name + std::to_string(same + 1), source});
    return all_.back().name;
  }

  std::string text() const {
    std::string text;
    for (const Definition& d : all_) {
      std::string source = d.source;
      source.replace(source.find("$Name"), 5, d.name);
      text += (text.empty() ? "" : "\n\n") + source;
    }
    return text;
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

std::string saved(const std::string& backward) {
  std::string names;
  if (has_word(backward, "x")) names = "x";
  if (has_word(backward, "y")) names += names.empty() ? "y" : ", y";
  return names;
}

std::string function_class(const CallSource& call, const std::string& subject,
                           const std::string& rule) {
  const std::string backward = filled(call, backward_source(call, rule));
  if (backward.empty()) throw UserError("repro: there is no Python source for the rule " + rule);
  const std::string keeps = saved(backward);
  const std::string parameter = call.has_group() ? ", group" : "";
  std::string text =
      fmt::format("class $Name(torch.autograd.Function):\n    \"\"\"{}backward: {}.\"\"\"\n\n",
                  source_of_subject(subject), summary_of_rule(rule));
  text += fmt::format("    @staticmethod\n    def forward(ctx, x{}):\n", parameter);
  if (call.has_group()) text += "        ctx.group = group\n";
  std::string forward = filled(call, source_of(call.spec->kind).forward(call));
  // What backward does not ask for is not kept.
  if (!has_word(backward, "sizes") && backward.find("ctx.sizes") == std::string::npos)
    while (forward.find("ctx.") != std::string::npos) {
      const std::size_t begin = forward.rfind('\n', forward.find("ctx.")) + 1;
      forward.erase(begin, forward.find('\n', begin) + 1 - begin);
    }
  text += indented_python(forward, 2);
  if (!keeps.empty()) text += fmt::format("        ctx.save_for_backward({})\n", keeps);
  text += "        return y\n\n    @staticmethod\n    def backward(ctx, g):\n";
  if (has_word(backward, "group")) text += "        group = ctx.group\n";
  if (!keeps.empty())
    text += fmt::format("        {}{} = ctx.saved_tensors\n", keeps, keeps.size() == 1 ? "," : "");
  text += indented_python(backward, 2);
  if (!backward.starts_with("raise"))
    text += call.has_group() ? "        return dx, None\n" : "        return dx\n";
  return text;
}

// Each call of torch.distributed with a handle that is waited for.
std::string asynchronous(const std::string& source, CollectiveKind kind) {
  static const std::regex call(R"(^( *dist\.(?!all_gather_object)\w+\(.*)\)$)",
                               std::regex::ECMAScript | std::regex::multiline);
  std::string text = std::regex_replace(source, call, "$1, async_op=True).wait()");
  const bool local = kind == CollectiveKind::kCopy || kind == CollectiveKind::kSlice;
  if (text == source && !local)
    throw UserError("repro: how a plain " + std::string(traits(kind).name) +
                    " of these operands is waited for cannot be written out");
  return text;
}

std::string plain_function(const CallSource& call, const std::string& around) {
  std::string source = filled(call, source_of(call.spec->kind).in_place(call));
  if (around == "async") source = asynchronous(source, call.spec->kind);
  return fmt::format(
      "def $Name(x{}):\n    \"\"\"As a plain call of torch.distributed does it: autograd sees what "
      "it sees.\"\"\"\n{}    return y\n",
      call.has_group() ? ", group" : "", indented_python(source, 1));
}

// The call of a function, up to where its operand stands.
std::string called(const std::string& function, const std::string& around,
                   const CollectiveCall& call) {
  if (around == "compile") return "compiled(" + function + ")(";
  if (around != "async") return function + "(";
  const bool to_root = call.kind == CollectiveKind::kReduce || call.kind == CollectiveKind::kGather;
  return fmt::format("waited_for({}, {}, ", function, to_root ? call.root + 1 : call.root);
}

std::string foreign_function(const CallSource& call, const ReproCase::Foreign::Call& how) {
  return fmt::format("def $Name(x{}):\n    \"\"\"The implementation under test.\"\"\"\n{}",
                     call.has_group() ? ", group" : "", indented_python(how.text, 1));
}

std::string simulation_function(const CallSource& call) {
  const std::string name(traits(call.spec->kind).name);
  return fmt::format(
      "def $Name(xs):\n    \"\"\"{} of the ranks' operands, in one process.\"\"\"\n{}", name,
      indented_python(filled(call, source_of(call.spec->kind).simulation(call)), 1));
}

// Whether the operands differ in size along the dim that joins them, in some group.
bool is_uneven(const Program& program, const CollectiveCall& call,
               const std::vector<Shape>& shapes) {
  if (!traits(call.kind).takes_dim || shapes.empty()) return false;
  std::vector<std::vector<int>> lists;
  if (const Group* group = call.group.empty() ? nullptr : program.group_named(call.group))
    lists = group->partition;
  else {
    lists.resize(1);
    for (int r = 0; r < program.world_size; ++r) lists[0].push_back(r);
  }
  for (const std::vector<int>& list : lists)
    for (const int rank : list)
      if (shapes.at(static_cast<std::size_t>(rank)) != shapes.at(static_cast<std::size_t>(list[0])))
        return true;
  return false;
}

std::string group_argument(const CollectiveCall& call) {
  return call.group.empty() ? "" : fmt::format(", process_groups[\"{}\"]", call.group);
}

// Torch's version decides some rows.
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

}  // namespace

CollectiveParts collective_parts(const ReproCase& repro, const Program& program, bool attach) {
  CollectiveParts parts;
  Definitions real, simulated;
  const std::vector<bool> on_gradient = depend_on_gradient(program);
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const CollectiveCall* spec = program.steps[i].collective();
    parts.calls.emplace_back();
    parts.simulated.emplace_back();
    if (!spec) continue;
    const std::string step = repro.program.steps[i].name;  // as it was before any renaming
    const auto shapes = repro.operands.find(step);
    // Of programs that call code the shapes are not known: then what takes any.
    const CallSource call{spec, shapes == repro.operands.end()
                                    ? traits(spec->kind).takes_dim && has_code(program.steps)
                                    : is_uneven(program, *spec, shapes->second)};
    const std::string kind(traits(spec->kind).name);
    std::string subject = subject_for(repro.which.subject, spec->kind);
    std::string text;
    const auto found = repro.foreign.calls.find(step);
    const ReproCase::Foreign::Call foreign = found != repro.foreign.calls.end()
                                                 ? found->second
                                                 : ReproCase::Foreign::Call{subject, "", ""};
    if (!foreign.builtin.empty()) subject = foreign.builtin;
    if (foreign.builtin.empty()) {
      text = called("plainly(" + real.add(kind, foreign_function(call, foreign)) + ")",
                    foreign.around, *spec) +
             spec->operand.text;
    } else if (const std::string rule = rule_for(subject, *spec); rule == "dispatcher") {
      text = called(real.add(kind, plain_function(call, foreign.around)), foreign.around, *spec) +
             spec->operand.text;
    } else {
      text = called(real.add(class_name(kind), function_class(call, subject, rule)) + ".apply",
                    foreign.around, *spec) +
             operand_text(spec->operand.text, attach, on_gradient[i]);
    }
    parts.calls.back() = text + group_argument(*spec) + ")";
    parts.simulated.back() = simulated.add("simulated_" + kind, simulation_function(call));
  }
  parts.definitions = real.text();
  parts.simulations = simulated.text();
  return parts;
}

}  // namespace distgrad
