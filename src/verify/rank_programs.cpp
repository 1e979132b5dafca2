#include "verify/rank_programs.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <string_view>

#include "model/subject_text.h"
#include "pool/worker_pool.h"
#include "scenario/cases.h"

namespace distgrad {
namespace {

// Torch's functional collectives, checkpoints and torch.compile import dynamo when they are first
// used, which takes a second or two. Importing it before the fork saves that time in every rank.
bool text_makes_torch_import_dynamo(std::string_view text) {
  constexpr std::string_view kWords[] = {"_functional_collectives", "torch.utils.checkpoint",
                                         "torch.compile"};
  return std::any_of(std::begin(kWords), std::end(kWords),
                     [&](std::string_view word) { return text.find(word) != text.npos; });
}

// Returns the file of "python:FILE.py:NAME", or of "python:MODULE:NAME" if it lies in the current
// folder. What that file imports in turn is not looked at; every rank then waits for it by itself.
std::string file_of(const SubjectPart& part) {
  if (!part.is_python()) return "";
  if (part.is_file()) return part.place;
  std::string path = part.place;
  std::replace(path.begin(), path.end(), '.', '/');
  return path + ".py";
}

bool part_makes_torch_import_dynamo(const SubjectPart& part) {
  constexpr std::size_t kMostRead = 1 << 20;
  constexpr std::string_view kModes[] = {"checkpoint", "checkpoint-reentrant", "compile"};
  if (part.mode && std::ranges::find(kModes, *part.mode) != std::end(kModes)) return true;
  if (text_makes_torch_import_dynamo(part.text)) return true;
  std::ifstream file(file_of(part), std::ios::binary);
  std::string text(file ? kMostRead : 0, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return text_makes_torch_import_dynamo(text);
}

bool makes_torch_import_dynamo(const std::string& subject) {
  return std::ranges::any_of(parts_of(subject), part_makes_torch_import_dynamo);
}

// Returns these subjects' files and modules other than torch's, in the order of the subjects.
std::vector<std::string> places_of(const std::set<std::string>& subjects) {
  std::vector<std::string> places;
  for (const std::string& subject : subjects)
    for (const SubjectPart& part : parts_of(subject)) {
      const bool is_users = part.is_python() && !part.is_reference() && !part.is_in_place() &&
                            part.place != "torch" && !part.place.starts_with("torch.");
      if (is_users && std::ranges::find(places, part.place) == places.end())
        places.push_back(part.place);
    }
  return places;
}

}  // namespace

RankPrograms::RankPrograms(std::span<const Case> cases, Interpreters* interpreters,
                           bool simulate_only)
    : commands_{{rank_executable()}}, imports_(1) {
  const auto runs = [&](const Case& c) {
    return c.skip_reason.empty() && has_python_ranks(c) && (!simulate_only || calls_code(c));
  };
  std::map<std::string, std::set<std::string>> subjects;  // by interpreter
  // If a program calls code, what that takes out of autograd may have to be watched from before its
  // import on, and its file is loaded for each case. So ranks import it by themselves.
  std::set<std::string> call_code;  // interpreters
  for (const Case& c : cases) {
    if (!runs(c)) continue;
    subjects[c.python].insert(c.subject);
    if (calls_code(c)) call_code.insert(c.python);
  }
  for (const Case& c : cases) {
    if (!runs(c) || !by_python_.emplace(c.python, commands_.size()).second) continue;
    const bool imports_dynamo = std::ranges::any_of(subjects[c.python], makes_torch_import_dynamo);
    imports_.push_back(call_code.contains(c.python) ? std::vector<std::string>{}
                                                    : places_of(subjects[c.python]));
    commands_.push_back(python_rank_command(interpreters->find_for_ranks(c.python).path,
                                            imports_dynamo ? "torch._dynamo" : "",
                                            imports_.back()));
  }
}

int RankPrograms::of(const Case& c) const {
  return has_python_ranks(c) ? by_python_.at(c.python) : 0;
}

int RankPrograms::simulator_of(const Case& c) const {
  return calls_code(c) ? by_python_.at(c.python) : 0;
}

}  // namespace distgrad
