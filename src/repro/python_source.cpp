#include "repro/python_source.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "repro/embedded_python.h"

namespace distgrad {
namespace {

constexpr std::string_view kQuotes = "\"\"\"";

bool begins_word(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool continues_word(char c) {
  return begins_word(c) || std::isdigit(static_cast<unsigned char>(c));
}

// Returns the word at `at`; empty where none begins there.
std::string_view word_at(std::string_view text, std::size_t at) {
  std::size_t end = at;
  if (end < text.size() && begins_word(text[end]))
    while (end < text.size() && continues_word(text[end])) ++end;
  return text.substr(at, end - at);
}

// Returns the name that a line at the left margin defines; empty where it defines nothing.
std::string_view defined_name(std::string_view line) {
  for (const std::string_view keyword : {"def ", "class "})
    if (line.starts_with(keyword)) return word_at(line, keyword.size());
  const std::string_view name = word_at(line, 0);
  return line.substr(name.size()).starts_with(" = ") ? name : std::string_view();
}

// Returns the position behind the string that begins at `at`.
std::size_t end_of_string(std::string_view text, std::size_t at) {
  const std::string_view quotes =
      text.substr(at).starts_with(kQuotes) ? kQuotes : text.substr(at, 1);
  for (at += quotes.size(); at < text.size() && !text.substr(at).starts_with(quotes); ++at)
    if (text[at] == '\\') ++at;
  return std::min(text.size(), at + quotes.size());
}

std::string without_blank_end(std::string text) {
  text.erase(text.find_last_not_of('\n') + 1);
  return text + "\n";
}

std::vector<Definition> parsed(std::string_view text) {
  std::vector<Definition> all;
  bool inside = false;  // whether the line belongs to a definition
  while (!text.empty()) {
    if (text.starts_with(kQuotes)) {  // the file's docstring
      text.remove_prefix(end_of_string(text, 0));
      inside = false;
    }
    const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end);
    const bool at_margin = line[0] != ' ' && line[0] != '\n' && line[0] != ')' && line[0] != '}';
    if (at_margin) {
      const std::string_view name = defined_name(line);
      inside = !name.empty();
      // Autograd calls the methods of its Functions itself, so those classes stay whole.
      const bool prunable = line.starts_with("class ") && line.find('.') == std::string_view::npos;
      if (inside) all.push_back({std::string(name), "", prunable});
    }
    if (inside) all.back().source += line;
  }
  for (Definition& definition : all)
    definition.source = without_blank_end(std::move(definition.source));
  return all;
}

}  // namespace

const std::vector<Definition>& definitions() {
  static const std::vector<Definition> all = parsed(kEmbeddedPython);
  return all;
}

void Words::add(std::string_view python) {
  for (std::size_t at = 0; at < python.size();) {
    const char c = python[at];
    if (c == '#') {
      at = std::min(python.find('\n', at), python.size());
    } else if (c == '"' || c == '\'') {
      at = end_of_string(python, at);
    } else if (const std::string_view word = word_at(python, at); !word.empty()) {
      (at > 0 && python[at - 1] == '.' ? attributes : names).emplace(word);
      at += word.size();
    } else {
      ++at;
      if (std::isdigit(static_cast<unsigned char>(c)))  // 1e5 has no word in it
        while (at < python.size() && continues_word(python[at])) ++at;
    }
  }
}

std::string with_methods(const Definition& definition, const std::set<std::string>& attributes) {
  constexpr std::string_view kMethod = "    def ";
  std::string out;
  bool keeps = true;
  for (std::string_view rest = definition.source; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n') + 1);
    if (line.starts_with(kMethod)) {
      const std::string name(word_at(line, kMethod.size()));
      keeps = name.starts_with("__") || attributes.contains(name);
    }
    if (keeps) out += line;
    rest.remove_prefix(line.size());
  }
  return without_blank_end(std::move(out));
}

std::string Pasted::take(const std::string& name) {
  const auto& all = definitions();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& d) { return d.name == name; });
  return found != all.end() && taken_.insert(name).second ? found->source : "";
}

std::vector<std::string> Pasted::take_named_in(const std::string& script) {
  Words words(script);
  std::map<const Definition*, std::string> found;
  for (bool more = true; more;) {
    more = false;
    for (const Definition& definition : definitions()) {
      if (!words.names.contains(definition.name) || taken_.contains(definition.name)) continue;
      std::string source =
          definition.has_methods ? with_methods(definition, words.attributes) : definition.source;
      if (source == found[&definition]) continue;
      words.add(source);
      found[&definition] = std::move(source);
      more = true;
    }
  }
  std::vector<std::string> sources;
  for (const auto& [definition, source] : found) {
    taken_.insert(definition->name);
    sources.push_back(source);
  }
  return sources;
}

}  // namespace distgrad
