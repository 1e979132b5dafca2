#include "dumps/read_dump.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "base/did_you_mean.h"
#include "base/error.h"
#include "base/pattern.h"
#include "dumps/dump_file.h"
#include "report/words.h"

namespace distgrad::dumps {
namespace {

namespace fs = std::filesystem;

bool is_safetensors(const fs::path& path) { return path.extension() == ".safetensors"; }
bool is_dump(const fs::path& path) { return is_safetensors(path) || path.extension() == ".json"; }

std::string missing_text(const std::string& path) {
  const fs::path wanted(path);
  const fs::path folder = wanted.has_parent_path() ? wanted.parent_path() : fs::path(".");
  std::vector<std::string> names;
  std::error_code ignored;
  for (fs::directory_iterator entry(folder, ignored), end;
       !ignored && entry != end && names.size() < 10'000; entry.increment(ignored))
    names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end());
  return for_terminal(path) + ": there is no such file or folder" +
         for_terminal(did_you_mean(wanted.filename().string(), names));
}

std::vector<std::string> files_in(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) throw UserError(missing_text(path));
  if (!fs::is_directory(path, error)) return {path};
  std::vector<std::string> files;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error))
    if (is_dump(entry->path()) && entry->path().filename() != "model.safetensors.index.json")
      files.push_back(entry->path().string());
  if (error) throw UserError(for_terminal(path) + ": cannot be read: " + error.message());
  if (files.empty())
    throw UserError(for_terminal(path) + ": no .safetensors or .json file in this folder");
  std::sort(files.begin(), files.end());
  return files;
}

RankDump read_file(const std::string& path) {
  if (is_safetensors(path)) return read_safetensors(path);
  if (fs::path(path).extension() == ".json") return read_json_dump(path);
  throw UserError(for_terminal(path) + ": neither .safetensors nor .json");
}

// Finds "rank3", "rank_3" or "rank-03"; else, if there are several files, the last number.
int rank_in_name(const std::string& path, bool is_one_of_several) {
  static const Pattern after_rank("[Rr]ank[-_.]?([0-9]{1,6})([^0-9]|$)");
  static const Pattern last("([0-9]{1,6})[^0-9]*$");
  const std::string stem = fs::path(path).stem().string();
  if (const auto match = after_rank.find(stem); !match.empty()) return std::stoi(match[1]);
  if (is_one_of_several)
    if (const auto match = last.find(stem); !match.empty()) return std::stoi(match[1]);
  return kWhole;
}

bool is_part_of_whole(const std::string& path) {
  static const Pattern pattern("-[0-9]{5}-of-[0-9]{5}$");
  return !pattern.find(fs::path(path).stem().string()).empty();
}

void add_part(RankDump& whole, RankDump part) {
  for (auto& [name, gradient] : part.gradients)
    if (!whole.gradients.emplace(name, std::move(gradient)).second)
      throw UserError(fmt::format("{} and {} both have {}", for_terminal(whole.file),
                                  for_terminal(part.file), for_terminal(name)));
}

void add_rank(Dump& dump, RankDump file) {
  const auto twin = std::find_if(dump.ranks.begin(), dump.ranks.end(),
                                 [&](const RankDump& r) { return r.rank == file.rank; });
  if (twin == dump.ranks.end()) {
    dump.ranks.push_back(std::move(file));
  } else if (file.rank == kWhole && is_part_of_whole(file.file) && is_part_of_whole(twin->file)) {
    add_part(*twin, std::move(file));
  } else if (file.rank == kWhole) {
    throw UserError(
        fmt::format("{} and {}: which ranks? Their names have no number, and they do not say",
                    for_terminal(twin->file), for_terminal(file.file)));
  } else {
    throw UserError(fmt::format("{} and {} are both of rank {}; compare one run at a time",
                                for_terminal(twin->file), for_terminal(file.file), file.rank));
  }
}

bool is_wrapper(std::string_view part) {
  static constexpr std::array<std::string_view, 4> kWrappers = {
      "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_flat_param"};
  return std::find(kWrappers.begin(), kWrappers.end(), part) != kWrappers.end();
}

// Removes the components that `is_left_out` accepts from the name, except the last one.
template <typename Predicate>
std::string without(const std::string& name, Predicate is_left_out) {
  std::string kept;
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    const std::string_view part = std::string_view(name).substr(at, end - at);
    if (end == name.size() || !is_left_out(part, kept.empty()))
      kept += (kept.empty() ? "" : ".") + std::string(part);
    at = end + 1;
  }
  return kept;
}

// Returns the user's name: further inside, "module" may be a name like any other.
std::string shown_name(const std::string& name) {
  return without(name, [](std::string_view part, bool first) {
    return is_wrapper(part) || (first && part == "module");
  });
}

void use_plain_names(RankDump& dump) {
  std::map<std::string, DumpGradient> plain;
  std::map<std::string, std::string> shown;
  for (const auto& [name, gradient] : dump.gradients) {
    if (!plain.emplace(plain_name(name), gradient).second)
      return;  // two names would become one, so all stay
    shown[plain_name(name)] = shown_name(name);
  }
  dump.gradients = std::move(plain);
  dump.shown = std::move(shown);
}

}  // namespace

std::string plain_name(const std::string& name) {
  return without(name,
                 [](std::string_view part, bool) { return is_wrapper(part) || part == "module"; });
}

Dump read_dump(std::span<const std::string> paths) {
  Dump dump;
  dump.path =
      paths.size() == 1 ? paths[0] : fmt::format("{} and {} more", paths[0], paths.size() - 1);
  std::vector<std::string> files;
  for (const std::string& path : paths)
    for (std::string& file : files_in(path)) files.push_back(std::move(file));
  for (const std::string& path : files) {
    RankDump file = read_file(path);
    if (file.rank == kWhole && !is_part_of_whole(path))
      file.rank = rank_in_name(path, files.size() > 1);
    add_rank(dump, std::move(file));
  }
  std::sort(dump.ranks.begin(), dump.ranks.end(),
            [](const RankDump& a, const RankDump& b) { return a.rank < b.rank; });
  if (dump.ranks.size() > 1 && dump.ranks[0].rank == kWhole)
    throw UserError(fmt::format("{}: which rank? Its name has no number, and it does not say",
                                for_terminal(dump.ranks[0].file)));
  bool any = false;
  for (RankDump& rank : dump.ranks) {
    use_plain_names(rank);
    any = any || !rank.gradients.empty() || rank.world_size;  // a dict may have nothing in it, too
  }
  if (!any) throw UserError(for_terminal(dump.path) + ": no gradient in it");
  return dump;
}

}  // namespace distgrad::dumps
