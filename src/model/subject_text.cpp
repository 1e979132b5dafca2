#include "model/subject_text.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
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

// Finds "KIND=" at the start. A '=' elsewhere belongs to the path of a file.
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

// Parses one mutation, such as "y=without:2".
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

bool any_part(std::string_view subject, bool (*holds)(const SubjectPart&)) {
  return std::ranges::any_of(parts_of(subject), holds);
}

// Returns the place of the '@' in "TEXT@MODE", or npos. A '@' within a path does not count, since a
// mode has neither '/' nor '.'.
std::size_t begin_of_mode(std::string_view text) {
  const std::size_t at = text.rfind('@');
  return at == text.npos || text.find_first_of("/.", at) != text.npos ? text.npos : at;
}

// Returns true for the characters of dotted names in Python.
bool is_of_a_name(char c) {
  return c == '_' || c == '.' || (c & 0x80) != 0 || std::isalnum(static_cast<unsigned char>(c));
}

bool is_bracket(char c) { return c == '(' || c == '['; }

// Returns the index after the end of the quoted text that begins at `from`.
std::size_t end_of_quotes(std::string_view text, std::size_t from) {
  for (std::size_t i = from + 1; i < text.size(); ++i) {
    if (text[i] == text[from]) return i + 1;
    if (text[i] == '\\') ++i;
  }
  return text.size();
}

// Returns the index after the bracket that closes the one at `from`. Python itself checks that
// kinds of brackets match.
std::size_t end_of_brackets(std::string_view text, std::size_t from) {
  int depth = 0;
  for (std::size_t i = from; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      i = end_of_quotes(text, i);
      continue;
    }
    ++i;
    if (is_bracket(c) || c == '{') ++depth;
    if ((c == ')' || c == ']' || c == '}') && --depth == 0) return i;
  }
  return text.size();
}

// Returns true if ":NAME" ends at `end` and "python:" comes somewhere before it. Other brackets
// belong to a path.
bool begins_call(std::string_view text, std::size_t end) {
  std::size_t begin = end;
  while (begin > 0 && is_of_a_name(text[begin - 1])) --begin;
  return begin < end && begin > kPython.size() && text[begin - 1] == ':' &&
         text.substr(0, begin - 1).find(kPython) != text.npos;
}

// Returns where the place ends in "FILE.py:NAME", "FILE.py", "MODULE:NAME" or "MODULE". A file's
// path may contain a colon, a module cannot.
std::size_t end_of_python_place(std::string_view target) {
  if (const std::size_t ending = target.find(".py:"); ending != target.npos) return ending + 3;
  return target.ends_with(".py") ? target.npos : target.find(':');
}

// Does the same for "FILE.so:NAMESPACE::OP". A wrong one may lack the "::" or the colon.
std::size_t end_of_library_place(std::string_view target) {
  const std::size_t scope = target.rfind("::");
  return scope == target.npos || scope == 0 ? target.find(':') : target.rfind(':', scope - 1);
}

void split_place(std::string_view target, std::size_t end, SubjectPart& part) {
  if (end != target.npos && end + 1 == target.size()) end = target.npos;  // nothing follows the ':'
  part.place = target.substr(0, end);
  if (end != target.npos) part.name = target.substr(end + 1);
}

}  // namespace

std::string without_calls(std::string_view text) {
  std::string plain(text);
  for (std::size_t i = text.find('('); i < text.size(); i = text.find('(', i)) {
    if (!begins_call(text, i)) {
      ++i;
      continue;
    }
    // Overwrites the call and what is applied to its result: "[0]", ".wait()".
    for (std::size_t next = i; next < text.size() && is_bracket(text[next]);) {
      i = end_of_brackets(text, next);
      std::fill(plain.begin() + static_cast<std::ptrdiff_t>(next),
                plain.begin() + static_cast<std::ptrdiff_t>(i), '_');
      for (next = i; next < text.size() && is_of_a_name(text[next]);) ++next;
    }
  }
  return plain;
}

std::string name_in(std::string_view called) {
  const std::string text = std::string(kPython).append(called);
  return text.substr(without_calls(text).rfind(':') + 1);
}

SubjectPart read_part(std::string_view text) {
  SubjectPart part;
  part.text = text;
  if (text.starts_with(kPython)) {
    part.code = SubjectPart::Code::kPython;
    text.remove_prefix(kPython.size());
    std::string plain = without_calls(part.text).substr(kPython.size());
    if (const std::size_t at = begin_of_mode(plain); at != plain.npos) {
      part.mode = text.substr(at + 1);
      text = text.substr(0, at);
      plain.resize(at);
    }
    split_place(text, end_of_python_place(plain), part);
  } else if (text.starts_with(kLibrary)) {
    part.code = SubjectPart::Code::kLibrary;
    text.remove_prefix(kLibrary.size());
    if (const std::size_t at = begin_of_mode(text); at != text.npos) {
      part.mode = text.substr(at + 1);
      text = text.substr(0, at);
    }
    split_place(text, end_of_library_place(text), part);
  } else {
    part.place = text;
  }
  return part;
}

bool has_parts(std::string_view subject) {
  std::size_t length = 0;
  return kind_at(subject, length).has_value();
}

std::vector<SubjectPart> parts_of(std::string_view subject) {
  if (!has_parts(subject)) return {read_part(subject)};
  const std::string whole = without_calls(subject);
  std::string_view plain = whole;
  std::vector<SubjectPart> parts;
  std::size_t length = 0;
  while (const auto kind = kind_at(plain, length)) {
    plain.remove_prefix(length);
    std::size_t end = plain.find('+');  // a path may contain one, too
    while (end != plain.npos && !kind_at(plain.substr(end + 1), length))
      end = plain.find('+', end + 1);
    parts.push_back(read_part(subject.substr(subject.size() - plain.size(), end)));
    parts.back().serves = kind;
    if (end == plain.npos) break;
    plain.remove_prefix(end + 1);
  }
  return parts;
}

std::string subject_for(std::string_view subject, CollectiveKind kind) {
  for (const SubjectPart& part : parts_of(subject))
    if (part.serves.value_or(kind) == kind) return part.text;
  return std::string(kReference);
}

std::string subject_in_mode(std::string_view subject, CollectiveKind kind, std::string_view mode) {
  const std::string ending = "@" + std::string(mode);
  if (!has_parts(subject)) return std::string(subject) + ending;
  std::string text;
  for (const SubjectPart& part : parts_of(subject))
    text += (text.empty() ? "" : "+") + std::string(traits(*part.serves).name) + "=" + part.text +
            (part.serves == kind ? ending : "");
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
  return any_part(subject, [](const SubjectPart& part) { return part.is_python(); });
}

bool runs_in_python(std::string_view subject) {
  return is_python_subject(subject) || !any_part(subject, [](const SubjectPart& part) {
           return !part.is_reference() && !part.is_in_place();
         });
}

bool is_foreign_code(std::string_view subject) {
  return any_part(subject,
                  [](const SubjectPart& part) { return part.code != SubjectPart::Code::kNone; });
}

bool is_reference(std::string_view subject) { return read_part(subject).is_reference(); }

}  // namespace distgrad
