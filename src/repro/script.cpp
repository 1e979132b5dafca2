#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "report/words.h"
#include "repro/program_facts.h"
#include "repro/python_source.h"
#include "repro/python_text.h"
#include "repro/repro.h"
#include "repro/script_parts.h"

namespace distgrad {
namespace {

constexpr std::size_t kWidth = 100;

constexpr const char* kConnect = R"(def connect(rank):
    """Makes the process groups: every rank has to, those that it is not in, too."""
)";

constexpr const char* kStart = R"(

if __name__ == "__main__":
    raise SystemExit(main())
)";

// Writes what happens on every rank.
std::string run_part(bool connects, bool measures, bool guards) {
  return fmt::format(
      R"(def run(rank):
    """On every rank, with torch.distributed initialised; the exit code."""
{}    everything = [None] * world_size
    dist.all_gather_object(everything, observed(rank))
{}    differ = False
    if rank == 0:
        losses, gradients = zip(*everything)
        true_losses, true = truth()
        differ = report(losses, true_losses, {})
    dist.barrier()
    dist.destroy_process_group()  # whose threads may abort a process that ends while they run
    return int(differ)
)",
      connects ? "    connect(rank)\n" : "", measures ? "    measure(rank)\n" : "",
      guards ? "[*rows(gradients, true), *guards(true_losses, true)]" : "rows(gradients, true)");
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts)
    if (!part.empty()) text += (text.empty() ? "" : "\n\n") + part;
  return text;
}

std::string world_part(const Program& program, const ReproCase::Foreign& foreign) {
  std::string text = fmt::format("world_size = {}\ndtype = torch.{}\n", program.world_size,
                                 traits(program.dtype).name);
  std::string groups;
  for (const Group& group : program.groups)
    groups += fmt::format("{}\"{}\": {}", groups.empty() ? "" : ", ", group.name,
                          list_literal(group.partition));
  if (!groups.empty()) text += fmt::format("groups = {{{}}}\n", groups);
  const bool grouped = std::any_of(program.steps.begin(), program.steps.end(), [](const Step& s) {
    return s.collective() && !s.collective()->group.empty();
  });
  const bool synced = std::any_of(program.inputs.begin(), program.inputs.end(), [](const Input& i) {
    return std::any_of(i.sync.begin(), i.sync.end(),
                       [](const auto& s) { return !s.first.empty(); });
  });
  if (grouped || synced || (!foreign.setups.empty() && !groups.empty()))
    text += "process_groups = {}  # those that a rank is in, by name\n";
  return text + "torch.set_default_dtype(torch.float64)\n";
}

bool is_sorted(const Group& group) {
  return std::all_of(group.partition.begin(), group.partition.end(),
                     [](const auto& ranks) { return std::is_sorted(ranks.begin(), ranks.end()); });
}

std::string groups_text(const Program& program, const std::string& used,
                        const std::vector<std::string>& setups) {
  std::string text;
  for (const Group& group : program.groups) {
    if (setups.empty() && used.find("process_groups[\"" + group.name + "\"]") == std::string::npos)
      continue;
    text += fmt::format(
        "    for ranks in groups[\"{0}\"]:\n        group = dist.new_group(ranks{1})\n        if "
        "rank in ranks:\n            process_groups[\"{0}\"] = group\n",
        group.name, is_sorted(group) ? "" : ", sort_ranks=False");
  }
  for (const std::string& setup : setups)
    text += fmt::format("    {}({{\"\": dist.group.WORLD{}}})\n", setup,
                        program.groups.empty() ? "" : ", **process_groups");
  return text.empty() ? "" : kConnect + text;
}

// Returns the collectives' functions that `text` names: those under test, or those of the truth.
std::vector<std::string> collectives_named(Pasted& pasted, const std::string& text) {
  const std::set<std::string> words = Words(text).names;
  std::vector<std::string> sources;
  for (const CollectiveTraits& kind : kCollectives)
    for (const char* pattern : {"plain_{}", "{}_forward", "{}_adjoint", "simulated_{}"}) {
      const std::string name = fmt::format(fmt::runtime(pattern), kind.name);
      if (words.contains(name)) sources.push_back(pasted.take(name));
    }
  return sources;
}

// Imports the modules of torch and Python that the script names.
std::string imports_part(const ReproCase& repro, const std::set<std::string>& words) {
  std::string text;
  for (const char* module : {"functools", "math", "os", "random", "sys", "time"})
    if (words.contains(module)) text += fmt::format("import {}\n", module);
  if (words.contains("importlib")) text += "import importlib.util\n";
  text += "\nimport torch\nimport torch.distributed as dist\nimport torch.multiprocessing as mp\n";
  if (repro.foreign.mode.starts_with("checkpoint")) text += "import torch.utils.checkpoint\n";
  return text + repro.foreign.imports;
}

std::string paragraph(const std::string& text) {
  return text.empty() ? "" : wrapped(docstring_text(text), 0, kWidth) + "\n";
}

std::string shown_in_short(const ReproCase& repro) {
  switch (repro.result.verdict) {
    case Verdict::kMatch:
      return "The gradients are right.";
    case Verdict::kDisputed:
      return "Disputed, so no accusation: " + repro.result.why;
    case Verdict::kError:
      return repro.result.error ? "Fails: " + repro.result.error->message : "Fails.";
    default:
      break;
  }
  return repro.result.findings.empty() ? "The gradients are wrong."
                                       : repro.result.findings.front().text;
}

std::string what_counts(const Objective& objective) {
  switch (objective.kind) {
    case Objective::Kind::kSum:
      return "the sum of the ranks' losses";
    case Objective::Kind::kMean:
      return "the mean of the ranks' losses";
    case Objective::Kind::kReplicated:
      return "the one loss that every rank computes";
    case Objective::Kind::kRank:
      return fmt::format("rank {}'s loss", objective.rank);
    case Objective::Kind::kByAxis:
      break;
  }
  return "the losses, by mesh axis " + spelled(objective);
}

}  // namespace

std::string header_part(const ReproCase& repro) {
  const Finding* finding = repro.result.findings.empty() ? nullptr : &repro.result.findings.front();
  std::string text = "\"\"\"";
  const std::string what =
      finding ? fmt::format("{}{}, ", finding->rule.text(),
                            finding->collective.empty() ? "" : " in " + finding->collective)
              : "";
  text += wrapped(docstring_text(what + repro.which.subject + ": " + shown_in_short(repro)), 0,
                  kWidth) +
          "\n";
  if (repro.which.scenario) text += paragraph(repro.which.scenario->note);
  text +=
      paragraph(fmt::format("The truth is the derivative of {}. Written by {} from {}.",
                            what_counts(repro.which.objective), repro.versions, repro.which.id));
  text += fmt::format(
      "Run: python FILE, or torchrun --nproc-per-node={} FILE. Exit code 1: the gradients "
      "differ.\n\"\"\"\n",
      repro.program.world_size);
  return text;
}

bool ReproCase::Foreign::has_code() const {
  return !functions.empty() || std::any_of(calls.begin(), calls.end(), [](const auto& call) {
    return call.second.builtin.empty();
  });
}

std::string repro_script(const ReproCase& repro) {
  if (repro.result.verdict == Verdict::kSkipped)
    throw UserError("repro: there is nothing to show: " + repro.result.why);
  const Program program = with_free_names(repro.program);
  const bool attach = may_part_ways(program);
  const CollectiveParts calls = collective_parts(repro, program, attach);
  const std::string run = program_part(repro, program, calls, attach),
                    truth = truth_part(repro, program), guards = guards_part(repro, program),
                    rows = rows_part(repro, program), observed = observed_part(repro, program);
  const std::string connect = groups_text(
      program, joined({joined(calls.definitions), run, observed}), repro.foreign.setups);
  // The script begins with what a reader wants first.
  Pasted pasted;
  std::vector<std::string> parts = calls.definitions;
  const auto add = [&](const std::string& part) { parts.push_back(part); };
  const auto add_collectives = [&](const std::string& named_in) {
    for (std::string& source : collectives_named(pasted, named_in)) add(source);
  };
  add_collectives(joined({joined(calls.definitions), run}));
  add(run);
  add(inputs_part(program));
  add_collectives(truth);
  add(truth);
  add(observed);
  const std::vector<std::string> compared = {
      guards, rows, connect,
      run_part(!connect.empty(), needs_differences(program.steps), !guards.empty())};
  for (const std::string& helper : pasted.take_named_in(joined(parts) + joined(compared) + kStart))
    add(helper);
  for (const std::string& part : compared) add(part);
  const std::string body = joined(parts) + kStart;
  return header_part(repro) + imports_part(repro, Words(repro.foreign.imports + body).names) +
         "\n" + world_part(program, repro.foreign) + "\n\n" + body;
}

}  // namespace distgrad
