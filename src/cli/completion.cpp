#include "cli/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/version.h"
#include "cli/command.h"
#include "cli/parse_arguments.h"
#include "model/backends.h"
#include "model/collective_kind.h"
#include "model/dtype.h"
#include "model/libraries.h"

namespace distgrad {
namespace {

using Words = std::vector<std::string>;

// These functions do the work, whatever the options are.
constexpr std::string_view kFunctions = R"bash(
# WORDS: those that begin with the word. In a list the part behind its last comma counts.
__distgrad_words() {
  local before=''
  [[ $word == *,* ]] && before=${word%,*},
  COMPREPLY=($(compgen -P "$before" -W "$1" -- "${word##*,}"))
}

# Keeps the cursor behind what it completed, so that a value can follow.
__distgrad_no_space() { compopt -o nospace 2>/dev/null; }

__distgrad_files() {
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen -f -- "$word")
}

__distgrad_folders() {
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen -d -- "$word")
}

# Scenario files, folders, and behind a file's colon the cases of it.
__distgrad_scenarios() {
  if [[ $word == *.json:* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$("$program" list cases "${word%%.json:*}.json" 2>/dev/null)" -- "$word")
    return
  fi
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen -d -- "$word"; compgen -f -X '!*.json' -- "$word")
}

# Bash takes = and : for the ends of words, and replaces only what follows them.
__distgrad_trim() {
  local done=${word%"${word##*[=:]}"}
  [[ $done ]] && COMPREPLY=("${COMPREPLY[@]#"$done"}")
}

_distgrad() {
  COMPREPLY=()
  local program=${COMP_WORDS[0]} line=${COMP_LINE:0:COMP_POINT} word words command options valued
  word=${line##*[[:space:]]}
  line=${line%"$word"}
  read -ra words <<<"$line"
  command=${words[1]-}
  if [[ ! $command ]]; then
    __distgrad_words "$commands_of_distgrad"
    return
  fi
  __distgrad_options "$command"
  if [[ $word == --*=* ]]; then  # --option=value
    local option=${word%%=*}
    local typed=$word
    word=${word#*=}
    __distgrad_value "$command/$option"
    COMPREPLY=("${COMPREPLY[@]/#/$option=}")
    word=$typed
  elif [[ $word == -* ]]; then
    __distgrad_words "$options"
  else
    local i place=1
    for ((i = 2; i < ${#words[@]}; ++i)); do
      if [[ " $valued " == *" ${words[i]} "* ]]; then
        ((++i))
      elif [[ ${words[i]} != -* ]]; then
        ((++place))
      fi
    done
    # One word too far: the last option still waits for its value.
    if ((i > ${#words[@]})); then
      __distgrad_value "$command/${words[${#words[@]} - 1]}"
    else
      __distgrad_value "$command/$place"
    fi
  fi
  __distgrad_trim
}

complete -F _distgrad distgrad
)bash";

template <class Rows>
Words names_of(const Rows& rows) {
  Words names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return names;
}

std::string words_of(const Words& words) {
  return fmt::format("__distgrad_words '{}'", fmt::join(words, " "));
}

// Completes "all_reduce=torch_nn": another subject follows the kind's "=".
Words subject_words() {
  Words words = names_of(subjects());
  words.insert(words.end(), {"python:", "library:"});
  return words;
}

// Says how an option's or positional's value is completed, by its name or else by what its value is
// called; "" means not at all.
std::string action_for(const OptionDescription& option) {
  static const std::map<std::string, std::string> by_name = {
      {"--subject", "__distgrad_subjects"},
      {"SUBJECT", "__distgrad_subjects"},
      {"--dtype", words_of(names_of(kDTypes))},
      {"--backend", words_of(names_of(kBackends))},
      {"--collective", words_of(names_of(kCollectives))},
      {"--objective", words_of({"sum", "mean", "replicated", "rank:0"})},
      {"--color", words_of({"auto", "always", "never"})},
      {"--python", "__distgrad_files"},
      {"PATH", "__distgrad_scenarios"},
      {"CASE", "__distgrad_scenarios"},
      {"COMMAND", "__distgrad_words \"$commands_of_distgrad\""},
  };
  static const std::map<std::string, std::string> by_argument = {{"FILE", "__distgrad_files"},
                                                                 {"DIR", "__distgrad_folders"}};
  if (const auto found = by_name.find(option.name); found != by_name.end()) return found->second;
  if (const auto found = by_argument.find(option.argument); found != by_argument.end())
    return found->second;
  if (option.name.starts_with("--")) return "";
  if (!option.argument.starts_with("|")) return "__distgrad_files";
  std::string choices = option.argument.substr(1);
  std::replace(choices.begin(), choices.end(), '|', ' ');
  return words_of({choices});
}

// Maps each action to the patterns of bash's `case` for it.
using Cases = std::map<std::string, Words>;

void add_positionals(Cases& cases, const std::string& command, const CommandDescription& d) {
  for (std::size_t i = 0; i < d.positionals.size(); ++i)
    cases[action_for(d.positionals[i])].push_back(fmt::format("{}/{}", command, i + 1));
  // If there are several, the last one may repeat.
  if (!d.positionals.empty() && d.positionals.back().repeats)
    cases[action_for(d.positionals.back())].push_back(command + "/[0-9]*");
}

std::string case_lines(const Cases& cases, bool positionals_that_repeat) {
  std::string text;
  for (const auto& [action, patterns] : cases) {
    Words kept;
    for (const std::string& p : patterns)
      if (p.ends_with("*") == positionals_that_repeat) kept.push_back(p);
    if (!kept.empty() && !action.empty())
      text += fmt::format("    {}) {} ;;\n", fmt::join(kept, "|"), action);
  }
  return text;
}

std::string subjects_function() {
  Words kinds;
  for (const CollectiveTraits& kind : kCollectives) kinds.push_back(std::string(kind.name) + "=");
  return fmt::format(
      "\n# NAME, or KIND=NAME.\n"
      "__distgrad_subjects() {{\n"
      "  local names='{}' kind=''\n"
      "  if [[ $word == *=* ]]; then\n"
      "    kind=${{word%=*}}=\n"
      "    COMPREPLY=($(compgen -P \"$kind\" -W \"$names\" -- \"${{word##*=}}\"))\n"
      "  else\n"
      "    __distgrad_words \"$names {}\"\n"
      "  fi\n"
      "  [[ ${{COMPREPLY[0]-}} == *[=:] ]] && __distgrad_no_space\n"
      "}}\n",
      fmt::join(subject_words(), " "), fmt::join(kinds, " "));
}

}  // namespace

std::string bash_completion() {
  Words names;
  Cases cases;
  std::string options;
  for (const Command& command : commands()) {
    const std::string name(command.name);
    const CommandDescription d = describe_command(command);
    Words all = {"--help"}, valued;
    for (const OptionDescription& option : d.options) {
      if (option.name == "--help") continue;
      all.push_back(option.name);
      if (option.argument.empty()) continue;
      valued.push_back(option.name);
      cases[action_for(option)].push_back(name + "/" + option.name);
    }
    add_positionals(cases, name, d);
    options += fmt::format("    {}) options='{}' valued='{}' ;;\n", name, fmt::join(all, " "),
                           fmt::join(valued, " "));
    names.push_back(name);
  }
  return fmt::format(
             "# bash completion of distgrad {}, made by `distgrad completion bash`\n"
             "commands_of_distgrad='{}'\n"
             "\n"
             "# COMMAND: its options, and those of them that have a value.\n"
             "__distgrad_options() {{\n"
             "  case $1 in\n{}    *) options='' valued='' ;;\n  esac\n"
             "}}\n"
             "\n"
             "# COMMAND/OPTION or COMMAND/N, its N-th other word.\n"
             "__distgrad_value() {{\n"
             "  case $1 in\n{}{}  esac\n"
             "}}\n",
             kVersion, fmt::join(names, " "), options, case_lines(cases, false),
             case_lines(cases, true)) +
         subjects_function() + std::string(kFunctions);
}

}  // namespace distgrad
