#include "scenario/case_id.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>

#include "base/error.h"
#include "model/backends.h"
#include "model/collective_kind.h"
#include "model/libraries.h"
#include "model/subject_text.h"
#include "scenario/fields.h"
#include "scenario/objective_text.h"
#include "scenario/parts.h"
#include "scenario/printable.h"
#include "scenario/subject_name.h"

namespace distgrad {
namespace {

const std::vector<std::string>& field_names() {
  static const std::vector<std::string> all = {"subject",   "world_size", "dtype", "backend",
                                               "objective", "device",     "python"};
  return all;
}

// Returns the field name that begins here, followed by '=', or "".
std::string_view field_at(std::string_view text) {
  for (const std::string& name : field_names())
    if (text.starts_with(name) && text.size() > name.size() && text[name.size()] == '=')
      return text.substr(0, name.size());
  return {};
}

std::vector<std::string> split_at_commas(std::string_view text) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t comma = text.find(',');
    parts.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

template <class T>
void add_once(std::vector<T>& list, T value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(std::move(value));
}

int world_size_of(const std::string& text) {
  int size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error != std::errc() || end != text.data() + text.size() || size < 1 || size > kMaxWorldSize)
    throw UserError(fmt::format("world_size must be an integer from 1 to {}, not {}", kMaxWorldSize,
                                in_quotes(text)));
  return size;
}

template <class Rows>
std::string hint_among(const std::string& word, const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.emplace_back(row.name);
  const std::string hint = name_hint(word, names);
  return hint.empty() ? "; it is " + choices(names) : hint;
}

DType dtype_of(const std::string& text) {
  if (const auto dtype = dtype_named(text)) return *dtype;
  throw UserError("unknown dtype " + in_quotes(text) + hint_among(text, kDTypes));
}

std::string backend_of(const std::string& text) {
  if (backend_named(text)) return text;
  throw UserError("unknown backend " + in_quotes(text) + hint_among(text, kBackends));
}

std::string device_of(const std::string& text) {
  if (std::find(kDevices.begin(), kDevices.end(), text) != kDevices.end()) return text;
  throw UserError("unknown device " + in_quotes(text) + "; it is \"cpu\" or \"cuda\"");
}

std::string subject_of(const std::string& text) {
  if (const std::string why = problem_with_subject(text); !why.empty()) throw UserError(why);
  return text;
}

// Returns true if a subject begins here, in a way no file's name does: "KIND=", "python:",
// "library:", or a built-in name.
bool begins_subject(std::string_view text) {
  if (text.starts_with("python:") || text.starts_with("library:")) return true;
  if (const std::size_t equals = text.find('=');
      equals != std::string_view::npos && collective_named(text.substr(0, equals)))
    return true;
  const auto rows = subjects();
  const std::string_view word = text.substr(0, text.find(','));
  return std::any_of(rows.begin(), rows.end(),
                     [&](const SubjectRow& row) { return row.name == word; });
}

// Splits only at commas before a subject, since a file's name may have others.
std::vector<std::string> split_subjects(std::string_view text) {
  const std::string plain = without_calls(text);
  std::vector<std::string> parts;
  std::size_t from = 0;
  for (std::size_t comma = plain.find(','); comma != std::string::npos;
       comma = plain.find(',', comma + 1)) {
    if (!begins_subject(std::string_view(plain).substr(comma + 1))) continue;
    parts.emplace_back(text.substr(from, comma - from));
    from = comma + 1;
  }
  parts.emplace_back(text.substr(from));
  return parts;
}

// Refuses "python:f.py:g,torchnn". A comma in the name of a function can only come before a
// misspelt subject.
void refuse_comma_in_name(std::string_view subject) {
  const std::string plain = without_calls(subject);
  const std::size_t colon = plain.rfind(':');
  const std::size_t comma = colon == std::string::npos ? colon : plain.find(',', colon);
  if (comma == std::string_view::npos || !is_python_subject(subject)) return;
  const std::string_view rest = subject.substr(comma + 1);
  if (rest.find_first_of("/.") != std::string_view::npos) return;
  if (const std::string why = problem_with_subject(rest); !why.empty()) throw UserError(why);
}

// Finds the ':' after which fields of a case begin. If a path that itself has one exists, it wins.
std::size_t find_fields(std::string_view text) {
  std::size_t first = std::string_view::npos;
  for (std::size_t colon = text.find(':'); colon != std::string_view::npos;
       colon = text.find(':', colon + 1)) {
    if (field_at(text.substr(colon + 1)).empty()) continue;
    std::error_code ignored;
    if (std::filesystem::exists(text.substr(0, colon), ignored)) return colon;
    if (first == std::string_view::npos) first = colon;
  }
  return first;
}

// Refuses "file.json:sbject=torch_nn" if file.json exists: that is a misspelt field rather than a
// path.
void refuse_misspelt_field(std::string_view text) {
  std::error_code ignored;
  for (std::size_t colon = text.find(':'); colon != std::string_view::npos;
       colon = text.find(':', colon + 1)) {
    if (!std::filesystem::exists(text.substr(0, colon), ignored)) continue;
    const std::string_view rest = text.substr(colon + 1);
    const std::string_view word = rest.substr(0, rest.find('='));
    std::string hint = name_hint(word, field_names());
    if (hint.empty())
      hint = "; a case is PATH:FIELD=VALUE,..., and the fields are " + choices(field_names());
    throw UserError(in_quotes(text) + ": unknown field " + in_quotes(word) + hint);
  }
}

// Returns where the next ",FIELD=" begins. Values may contain commas.
std::size_t end_of_field(std::string_view fields) {
  const std::string plain = without_calls(fields);
  for (std::size_t comma = plain.find(','); comma != std::string::npos;
       comma = plain.find(',', comma + 1))
    if (!field_at(std::string_view(plain).substr(comma + 1)).empty()) return comma;
  return fields.size();
}

}  // namespace

void add_override(Overrides& overrides, std::string_view field, std::string_view value) {
  if (field == "python") {
    add_once(overrides.pythons, std::string(value));
  } else if (field == "subject" && value.find(':') != std::string_view::npos) {
    for (const std::string& one : split_subjects(value)) {
      refuse_comma_in_name(one);
      add_once(overrides.subjects, subject_of(one));
    }
  } else {
    for (const std::string& one : split_at_commas(value)) {
      if (one.empty()) throw UserError(fmt::format("{} has no value", field));
      if (field == "subject") add_once(overrides.subjects, subject_of(one));
      if (field == "world_size") add_once(overrides.world_sizes, world_size_of(one));
      if (field == "dtype") add_once(overrides.dtypes, dtype_of(one));
      if (field == "backend") add_once(overrides.backends, backend_of(one));
      if (field == "device") add_once(overrides.devices, device_of(one));
      if (field == "objective") add_once(overrides.objectives, parse_objective_text(one));
    }
  }
}

Overrides narrowed(Overrides options, const Overrides& by_name) {
  const auto replace = [](auto& option, const auto& named) {
    if (!named.empty()) option = named;
  };
  replace(options.subjects, by_name.subjects);
  replace(options.world_sizes, by_name.world_sizes);
  replace(options.dtypes, by_name.dtypes);
  replace(options.backends, by_name.backends);
  replace(options.objectives, by_name.objectives);
  replace(options.devices, by_name.devices);
  replace(options.pythons, by_name.pythons);
  return options;
}

CaseSelection parse_case_id(std::string_view text) {
  CaseSelection selection{.path = std::string(text), .fields = {}};
  std::error_code ignored;
  if (std::filesystem::exists(selection.path, ignored)) return selection;
  const std::size_t colon = find_fields(text);
  if (colon == std::string_view::npos) {
    refuse_misspelt_field(text);
    return selection;
  }
  selection.path = text.substr(0, colon);
  std::string_view rest = text.substr(colon + 1);
  while (!rest.empty()) {
    const std::string_view field = field_at(rest);
    const std::string_view value =
        rest.substr(field.size() + 1, end_of_field(rest) - field.size() - 1);
    add_override(selection.fields, field, value);
    rest.remove_prefix(std::min(field.size() + 1 + value.size() + 1, rest.size()));
  }
  return selection;
}

}  // namespace distgrad
