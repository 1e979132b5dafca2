#include "model/subject_text.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <stdexcept>

#include "model/group_order.h"

namespace distgrad {
namespace {

constexpr std::string_view kPython = "python:", kLibrary = "library:", kReference = "reference",
                           kMutant = "mutant:";

struct MutationPrefix {
  std::string_view text;
  Mutation::Kind kind;
  bool takes_number;
};
constexpr MutationPrefix kMutationPrefixes[] = {
    {"without:", Mutation::Kind::kWithout, true}, {"root:", Mutation::Kind::kRoot, true},
    {"group:", Mutation::Kind::kGroup, false},    {"order:", Mutation::Kind::kOrder, false},
    {"stale:", Mutation::Kind::kStale, false},    {"linear:", Mutation::Kind::kLinear, true},
};

// "KIND=" at the start; a '=' elsewhere belongs to the path of a file.
std::optional<CollectiveKind> kind_at(std::string_view text, std::size_t& length) {
  const std::size_t equals = text.find('=');
  if (equals == text.npos) return std::nullopt;
  length = equals + 1;
  return collective_named(text.substr(0, equals));
}

bool read_whole(std::string_view text, std::uint64_t& number) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end;
}

// "y=without:2"
Mutation mutation_of(std::string_view text) {
  const std::invalid_argument invalid("no mutation: " + std::string(text));
  const std::size_t equals = text.find('=');
  if (equals == text.npos || equals == 0) throw invalid;
  Mutation mutation;
  mutation.step = text.substr(0, equals);
  text.remove_prefix(equals + 1);
  for (const auto& [prefix, kind, takes_number] : kMutationPrefixes) {
    if (!text.starts_with(prefix)) continue;
    mutation.kind = kind;
    text.remove_prefix(prefix.size());
    if (!takes_number) break;
    if (!read_whole(text, mutation.number)) throw invalid;
    return mutation;
  }
  const bool is_order = mutation.kind == Mutation::Kind::kOrder;
  if (text.empty() || text.find(':') != text.npos ||
      (is_order && std::ranges::find(kGroupOrders, text) == std::end(kGroupOrders)))
    throw invalid;
  mutation.name = text;
  return mutation;
}

bool any_part(std::string_view subject, bool (*holds)(std::string_view)) {
  const auto parts = parts_by_kind(subject);
  if (parts.empty()) return holds(subject);
  return std::any_of(parts.begin(), parts.end(),
                     [&](const auto& part) { return holds(part.second); });
}

}  // namespace

std::vector<std::pair<CollectiveKind, std::string>> parts_by_kind(std::string_view subject) {
  std::vector<std::pair<CollectiveKind, std::string>> parts;
  std::size_t length = 0;
  while (const auto kind = kind_at(subject, length)) {
    subject.remove_prefix(length);
    std::size_t end = subject.find('+');  // a path may have one, too
    while (end != subject.npos && !kind_at(subject.substr(end + 1), length))
      end = subject.find('+', end + 1);
    parts.emplace_back(*kind, subject.substr(0, end));
    if (end == subject.npos) break;
    subject.remove_prefix(end + 1);
  }
  return parts;
}

std::string subject_for(std::string_view subject, CollectiveKind kind) {
  const auto parts = parts_by_kind(subject);
  if (parts.empty()) return std::string(subject);
  for (const auto& [of, what] : parts)
    if (of == kind) return what;
  return std::string(kReference);
}

std::pair<std::string_view, std::optional<std::string_view>> split_mode(std::string_view part) {
  const std::size_t at = part.rfind('@');
  // A '@' of a path, if a mode can have neither.
  if (at == part.npos || part.find_first_of("/.", at) != part.npos) return {part, std::nullopt};
  return {part.substr(0, at), part.substr(at + 1)};
}

std::string subject_in_mode(std::string_view subject, CollectiveKind kind, std::string_view mode) {
  const std::string ending = "@" + std::string(mode);
  const auto parts = parts_by_kind(subject);
  if (parts.empty()) return std::string(subject) + ending;
  std::string text;
  for (const auto& [of, what] : parts)
    text += (text.empty() ? "" : "+") + std::string(traits(of).name) + "=" + what +
            (of == kind ? ending : "");
  return text;
}

bool is_mutant(std::string_view subject) { return subject.starts_with(kMutant); }

std::vector<Mutation> mutations_of(std::string_view subject) {
  if (!is_mutant(subject)) throw std::invalid_argument("no mutant: " + std::string(subject));
  std::vector<Mutation> mutations;
  for (subject.remove_prefix(kMutant.size());; subject.remove_prefix(subject.find('+') + 1)) {
    mutations.push_back(mutation_of(subject.substr(0, subject.find('+'))));
    if (subject.find('+') == subject.npos) return mutations;
  }
}

bool is_python_subject(std::string_view subject) {
  return any_part(subject, [](std::string_view part) { return part.starts_with(kPython); });
}

bool runs_in_python(std::string_view subject) {
  return is_python_subject(subject) ||
         (parts_by_kind(subject).empty() ? subject == kReference || subject == "in_place"
                                         : !any_part(subject, [](std::string_view part) {
                                             return part != kReference && part != "in_place";
                                           }));
}

bool is_foreign_code(std::string_view subject) {
  return any_part(subject, [](std::string_view part) {
    return part.starts_with(kPython) || part.starts_with(kLibrary);
  });
}

bool is_reference(std::string_view subject) {
  if (subject.starts_with(kPython)) subject = split_mode(subject.substr(kPython.size())).first;
  return subject == kReference;
}

}  // namespace distgrad
