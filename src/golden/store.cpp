#include "golden/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "base/error.h"
#include "base/regular_file.h"
#include "base/sha256.h"
#include "golden/canonical.h"
#include "golden/difference.h"
#include "golden/record.h"
#include "scenario/read_file.h"

namespace distgrad::golden {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostGoldenBytes = 256 << 20;

fs::path clean(const fs::path& path) {
  const fs::path absolute = fs::absolute(path).lexically_normal();
  return absolute.has_filename() ? absolute : absolute.parent_path();  // "golden/" is "golden"
}

std::optional<fs::path> within_folder(const fs::path& path, const fs::path& folder) {
  const fs::path relative = path.lexically_relative(folder);
  if (relative.empty() || *relative.begin() == "..") return std::nullopt;
  return relative;
}

Gradient* named(std::vector<Gradient>& gradients, const std::string& input) {
  for (Gradient& g : gradients)
    if (g.input == input) return &g;
  return nullptr;
}

// Returns the bound around the stored value. A run lies within the recorded bound of what this
// torch simulates, which may differ from the stored value; the bound grows by that difference where
// machines may differ that much.
double bound_around_stored(double stored, double simulated, double bound, DType dtype) {
  const double apart = std::abs(stored - simulated);
  const double slack = slack_of(bound, dtype);
  return apart <= slack ? bound + apart : bound;
}

void replace_part(const Array& stored, const Array& bounds, DType dtype, Array& part,
                  Array& bound) {
  std::vector<double> around(bounds.values().begin(), bounds.values().end());
  for (std::size_t i = 0; i < around.size(); ++i)
    around[i] = bound_around_stored(stored.values()[i], part.values()[i], around[i], dtype);
  bound = Array(stored.shape(), std::move(around));
  part = stored;
}

// Returns whether the simulated gradient, which then stays, fits the record's summary.
bool fits(const GradientRecord& record, const Gradient& simulated, const CaseRecord& c) {
  std::vector<Array> parts;
  for (const auto& part : simulated.parts) parts.push_back(part.value_or(Array::scalar(0)));
  GoldenFile stored{"", {c}}, now{"", {c}};
  stored.cases[0].gradients = {record};
  now.cases[0].gradients = {record};
  now.cases[0].gradients[0].summary = summary_of(parts, record.summary->bound);
  Differences differences;
  kept(stored, now, differences);
  return differences.empty();
}

constexpr const char* kEdited = "the file was edited, or is out of date (distgrad golden diff)";

// Returns what is wrong with a stored value or bound of `what`, given those of now, or "".
std::string apart_text(const std::string& what, double stored, double simulated, double bound,
                       std::optional<double> simulated_bound, DType dtype) {
  if (simulated_bound && is_too_wide(bound, *simulated_bound))
    return fmt::format("{} of the golden file has the bound {:.3g} where {:.3g} is right now: {}",
                       what, bound, *simulated_bound, kEdited);
  if (std::abs(stored - simulated) > slack_of(bound, dtype))
    return fmt::format("{} of the golden file has {:.9g} where {:.9g} is right now: {}", what,
                       stored, simulated, kEdited);
  return "";
}

// Returns what apart_text() says of the first element of a part, if it says anything.
std::string part_apart_text(const GradientRecord& record, std::size_t p, const Array& simulated,
                            const Gradient* bounds, DType dtype) {
  const bool has_bounds = bounds && p < bounds->parts.size() && bounds->parts[p] &&
                          bounds->parts[p]->shape() == simulated.shape();
  for (std::size_t i = 0; i < simulated.values().size(); ++i) {
    std::optional<double> bound;
    if (has_bounds) bound = bounds->parts[p]->values()[i];
    if (std::string why =
            apart_text(record.input, record.parts[p].values()[i], simulated.values()[i],
                       record.bounds[p].values()[i], bound, dtype);
        !why.empty())
      return why;
  }
  return "";
}

std::string replace_gradient(const GradientRecord& record, const CaseRecord& c,
                             Simulation& simulation) {
  Gradient* truth = named(simulation.gradients.at(0), record.input);
  Gradient* bounds = named(simulation.bounds, record.input);
  const std::string unlike = record.input + " of the golden file is not shaped as the program's";
  if (!truth) return unlike;
  if (record.summary)
    return fits(record, *truth, c) ? ""
                                   : record.input + " no longer fits the golden file's summary";
  if (truth->parts.size() != record.parts.size()) return unlike;
  std::vector<std::optional<Array>> bound_parts(record.parts.size());
  for (std::size_t p = 0; p < record.parts.size(); ++p) {
    Array part = truth->parts[p].value_or(Array::scalar(0));
    if (part.shape() != record.parts[p].shape()) return unlike;
    if (std::string why = part_apart_text(record, p, part, bounds, c.dtype); !why.empty())
      return why;
    Array bound;
    replace_part(record.parts[p], record.bounds[p], c.dtype, part, bound);
    truth->parts[p] = part;
    bound_parts[p] = bound;
  }
  if (bounds) bounds->parts = std::move(bound_parts);
  return "";
}

}  // namespace

std::string scenario_sha256(const std::string& path) {
  return sha256(canonical_form(read_scenario_file(path)));
}

std::optional<std::string> read_if_there(const std::string& path) {
  FileContent content = read_regular_file(path, kMostGoldenBytes);
  if (content.problem.empty()) return std::move(content.text);
  if (content.error == ENOENT || content.error == ENOTDIR) return std::nullopt;
  throw UserError(path + ": " + content.problem);
}

std::string put_in_place(const CaseRecord& c, const Program&, Simulation& simulation) {
  if (!c.why.empty()) return "";  // no gradients are stored
  if (c.losses.size() != simulation.losses.size()) return "the golden file has other ranks' losses";
  for (const GradientRecord& record : c.gradients)
    if (std::string why = replace_gradient(record, c, simulation); !why.empty()) return why;
  std::vector<std::optional<double>> now(simulation.loss_bounds.begin(),
                                         simulation.loss_bounds.end());
  now.resize(c.losses.size());
  simulation.loss_bounds.resize(c.losses.size());
  for (std::size_t r = 0; r < c.losses.size(); ++r) {
    if (std::string why = apart_text(fmt::format("rank {}'s loss", r), c.losses[r],
                                     simulation.losses[r], c.loss_bounds[r], now[r], c.dtype);
        !why.empty())
      return why;
    simulation.loss_bounds[r] =
        bound_around_stored(c.losses[r], simulation.losses[r], c.loss_bounds[r], c.dtype);
    simulation.losses[r] = c.losses[r];
  }
  return "";
}

Store::Store(std::string folder) : folder_(std::move(folder)) {}

std::string Store::path_of(const std::string& scenario) const {
  const fs::path path = clean(scenario);
  auto relative = within_folder(path, clean(folder_).parent_path());
  if (!relative) relative = within_folder(path, fs::current_path());
  if (!relative)
    throw UserError(
        fmt::format("{}: lies neither beside the golden files' folder {} nor in the "
                    "working directory, so its golden file has no name",
                    scenario, folder_));
  return (fs::path(folder_) / *relative).string();
}

std::vector<std::string> Store::without_scenario() const {
  std::vector<std::string> found;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder_, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->path().extension() != ".json" || entry->is_directory(ignored)) continue;
    const fs::path relative = entry->path().lexically_relative(folder_);
    if (!fs::exists(clean(folder_).parent_path() / relative, ignored) &&
        !fs::exists(relative, ignored))
      found.push_back(entry->path().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

const Store::Loaded& Store::loaded(const Scenario& scenario) {
  const auto [place, is_new] = by_scenario_.emplace(scenario.file, Loaded{});
  Loaded& loaded = place->second;
  if (!is_new) return loaded;
  try {
    const std::string path = path_of(scenario.file);
    const auto text = read_if_there(path);
    if (!text) {
      loaded.why = "there is no golden file " + path;
      return loaded;
    }
    loaded.file = parse_golden(*text, path);
    if (loaded.file->scenario_sha256 != scenario_sha256(scenario.file)) {
      loaded.file.reset();
      loaded.why = "the scenario has changed since " + path + " was written";
    }
  } catch (const UserError& e) {
    loaded.file.reset();
    loaded.why = e.what();
  }
  return loaded;
}

std::string Store::replace_truth(const Case& which, const Program& program,
                                 Simulation& simulation) {
  const Loaded& stored = loaded(*which.scenario);
  if (!stored.file) return stored.why;
  CaseRecord wanted;
  wanted.objective = spelled(which.objective);
  wanted.world_size = which.world_size;
  wanted.dtype = which.dtype;
  for (const CaseRecord& c : stored.file->cases)
    if (same_case(c, wanted)) return put_in_place(c, program, simulation);
  return fmt::format("{} has no case {}", path_of(which.scenario->file), case_text(wanted));
}

}  // namespace distgrad::golden
