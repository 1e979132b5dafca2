#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "report/words.h"
#include "repro/call_source.h"
#include "repro/program_facts.h"
#include "repro/python_text.h"
#include "repro/repro.h"
#include "repro/script_parts.h"

namespace distgrad {
namespace {

constexpr std::size_t kWidth = 100;

constexpr const char* kLeaf = R"(def leaf(value, as_dtype=torch.float64, requires_grad=True):
    value = value.to(dtype).to(as_dtype).clone(memory_format=torch.contiguous_format)
    return value.requires_grad_(requires_grad)
)";

constexpr const char* kGradient = R"(def gradient(leaf):
    if isinstance(leaf, list):
        return [gradient(of_rank) for of_rank in leaf]
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
)";

constexpr const char* kShard = R"(def shard(x, dim, index, count):
    """The piece of a rank, as torch.chunk cuts: the last may be shorter, or empty."""
    each = -(-x.size(dim) // count)
    begin = min(index * each, x.size(dim))
    return x.narrow(dim, begin, min(each, x.size(dim) - begin))
)";

constexpr const char* kRanksWith = R"(def ranks_with(partition, rank):
    return next(ranks for ranks in partition if rank in ranks)
)";

constexpr const char* kByGroup = R"(def by_group(partition, simulated, xs):
    ys = [None] * world_size
    for ranks in partition:
        for rank, y in zip(ranks, simulated([xs[rank] for rank in ranks])):
            ys[rank] = y
    return ys
)";

constexpr const char* kPutTogether = R"(def put_together(pieces, gradients, like):
    """Each rank's gradient in its place; those of one place are summed."""
    whole = torch.zeros_like(like)
    for ranks, place in pieces:
        for rank in ranks:
            if gradients[rank] is not None:
                whole[place] += gradients[rank].double()
    return whole
)";

constexpr const char* kGradientNorm = R"(def squared_gradient_norm(loss, leaves):
    """Of the gradients of all ranks' losses, which a first backward brings through the collectives."""
    norm = torch.zeros((), dtype=loss.dtype)
    if loss.requires_grad:
        for gradient in torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True):
            if gradient is not None:
                norm = norm + (gradient * gradient).sum()
    return norm
)";

constexpr const char* kGradientNorms = R"(def squared_gradient_norms(losses, leaves):
    """By rank: of the gradient of the sum of the losses with respect to the rank's leaves."""
    return [squared_gradient_norm(sum(losses), [by_rank[rank] for by_rank in leaves]) for rank in range(world_size)]
)";

constexpr const char* kReport = R"(def shown(value):
    if value is None or not value.dim():
        return "None" if value is None else f"{value.item():.6g}"
    numbers = [f"{number:.6g}" for number in value.flatten().tolist()]
    return "[" + ", ".join(numbers[:6]) + (", ...]" if len(numbers) > 6 else "]")


def report(losses, gradients):
    """Prints what the ranks observed beside the truth; whether they differ."""
    true_losses, true = truth()
    table = [("gradient of", "", "observed", "truth", "")]
    for name, where, seen, wanted, bound in $compared:
        value = torch.zeros_like(wanted) if seen is None else seen.double()
        same = value.shape == wanted.shape and torch.isclose(value, wanted, rtol=0, atol=bound, equal_nan=True).all()
        table.append((name, where, shown(seen), shown(wanted), "" if same else "<-- differs"))
    widths = [max(len(row[column]) for row in table) for column in range(4)]
    for row in table:
        print("  ".join(text.ljust(width) for text, width in zip(row, [*widths, 0])).rstrip())
    print("losses by rank:", *(f"{loss:.9g}" for loss in losses), "| truth:", *(f"{loss:.9g}" for loss in true_losses))
    return any(row[4] for row in table)
)";

constexpr const char* kConnect = R"(def connect(rank):
    """Makes the process groups: every rank has to, those that it is not in, too."""
)";

constexpr const char* kMain = R"(def run(rank):
    """On every rank, with torch.distributed initialised; the exit code."""
$connect    everything = [None] * world_size
    dist.all_gather_object(everything, observed(rank))
$measure    losses, gradients = zip(*everything)
    differ = report(losses, gradients) if rank == 0 else False
    dist.barrier()
    return int(differ)


def start(rank, port, code):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    if run(rank):
        code.value = 1


def main():
    if "TORCHELASTIC_RUN_ID" in os.environ:  # under torchrun
        dist.init_process_group("gloo")
        return run(dist.get_rank())
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    code = mp.get_context("spawn").Value("i", 0)
    mp.spawn(start, (store.port, code), nprocs=world_size)
    return code.value


if __name__ == "__main__":
    raise SystemExit(main())
)";

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

// Only what the rest names.
std::string helpers_part(const std::string& rest) {
  std::vector<std::string> helpers;
  for (const HelperSource& helper : kHelpers)
    if (has_word(rest, helper.name)) helpers.emplace_back(helper.source);
  helpers.emplace_back(kLeaf);
  helpers.emplace_back(kGradient);
  for (const auto& [name, source] : {std::pair("shard", kShard),
                                     {"ranks_with", kRanksWith},
                                     {"squared_gradient_norm", kGradientNorm},
                                     {"squared_gradient_norms", kGradientNorms},
                                     {"by_group", kByGroup},
                                     {"put_together", kPutTogether}})
    if (has_word(rest, name)) helpers.emplace_back(source);
  return joined(helpers);
}

std::string imports_part(const ReproCase& repro, const std::string& helpers) {
  std::string text = "import os\n";
  const auto calls = [&](const char* what) { return helpers.find(what) != std::string::npos; };
  if (calls("random.seed(")) text += "import random\n";
  if (repro.foreign.imports.find("importlib.util.") != std::string::npos)
    text += "import importlib.util\n";
  if (calls("sys.modules") || has_word(repro.foreign.imports, "sys")) text += "import sys\n";
  if (calls("time.sleep(")) text += "import time\n";
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
      finding ? fmt::format("{}{}, ", finding->rule,
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
  const CollectiveParts parts = collective_parts(repro, program, attach);
  const std::string guards = guards_part(repro, program);
  std::string report = kReport;
  report.replace(report.find("$compared"), 9,
                 guards.empty() ? "rows(gradients, true)"
                                : "[*rows(gradients, true), *guards(true_losses, true)]");
  // What a reader wants first stands first.
  const std::string shown =
      joined({parts.definitions, program_part(repro, program, parts, attach), inputs_part(program),
              parts.simulations, truth_part(repro, program, parts), observed_part(repro, program)});
  const std::string compared = joined({guards, rows_part(repro, program), report});
  const std::string rest = shown + "\n\n" + compared;
  std::string main = kMain;
  const std::string connect = groups_text(program, rest, repro.foreign.setups);
  main.replace(main.find("$connect"), 8, connect.empty() ? "" : "    connect(rank)\n");
  main.replace(main.find("$measure"), 8,
               needs_differences(program.steps) ? "    measure(rank)\n" : "");
  const std::string helpers = helpers_part(rest);
  return header_part(repro) + imports_part(repro, helpers) + "\n" +
         world_part(program, repro.foreign) + "\n\n" +
         joined({shown, helpers, compared, connect, main});
}

}  // namespace distgrad
