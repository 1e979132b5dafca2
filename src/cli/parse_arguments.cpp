#include "cli/parse_arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "base/did_you_mean.h"
#include "base/error.h"
#include "cli/say.h"
#include "report/words.h"

namespace distgrad {
namespace {

constexpr std::size_t kHelpWidth = 80;

std::string usage_of(const CLI::Option& positional) {
  std::string text = positional.get_name(true);
  if (positional.get_items_expected_max() > 1) text += "...";
  return positional.get_required() ? " " + text : " [" + text + "]";
}

// Prints "  --world-size N,...   the number of ranks"; CLI11's own formatter also prints types and
// defaults.
class Help : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    const bool has_argument = !option->get_type_name().empty() && !option->get_positional();
    return has_argument ? " " + option->get_type_name() : "";
  }
  std::string make_usage(const CLI::App* app, std::string) const override {
    std::string text = "Usage: " + app->get_name();
    if (!app->get_options([](const CLI::Option* o) { return o->nonpositional(); }).empty())
      text += " [OPTION...]";
    for (const CLI::Option* option :
         app->get_options([](const CLI::Option* o) { return o->get_positional(); }))
      text += usage_of(*option);
    return text + "\n";
  }
  std::string make_description(const CLI::App* app) const override {
    return wrapped(app->get_description(), 0, kHelpWidth) + "\n";
  }
  // Continues text that does not fit in its own column.
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    const std::size_t column = get_column_width();
    const std::string name =
        "  " + make_option_name(option, is_positional) + make_option_opts(option);
    std::string text = wrapped(make_option_desc(option), column, kHelpWidth);
    if (name.size() >= column) return name + "\n" + text;
    return text.replace(0, name.size(), name);
  }
  std::string make_footer(const CLI::App* app) const override { return app->get_footer(); }
  std::string make_group(std::string, bool is_positional,
                         std::vector<const CLI::Option*> options) const override {
    std::string text = is_positional ? "" : "\n";
    for (const CLI::Option* option : options) text += make_option(option, is_positional);
    return text;
  }
};

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

[[noreturn]] void throw_unknown(const CLI::App& app, const std::vector<std::string>& remaining) {
  std::string word = remaining.empty() ? "" : remaining.front();
  for (const std::string& r : remaining)
    if (r.starts_with("-")) {
      word = r;
      break;
    }
  const bool option = word.starts_with("-");
  word = option ? word.substr(0, word.find('=')) : word;
  std::string hint = option ? did_you_mean(word, option_names(app)) : "";
  if (hint.empty()) hint = fmt::format("; `{} --help` lists what there is", app.get_name());
  throw UserError(fmt::format("{}: {} \"{}\"{}", app.get_name().substr(sizeof("distgrad")),
                              option ? "unknown option" : "unexpected argument", word, hint));
}

CommandDescription* asked_for = nullptr;  // set by describe_command()

void fill(CommandDescription& description, const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const bool positional = option->get_positional();
    const std::string argument =
        option->get_items_expected_max() == 0 ? "" : option->get_type_name();
    if (positional)
      description.positionals.push_back(
          {option->get_name(true), argument, option->get_items_expected_max() > 1});
    for (const std::string& name : option->get_lnames())
      description.options.push_back({"--" + name, argument, false});
  }
}

}  // namespace

std::string choices_text(const std::vector<std::string>& words) {
  return fmt::format("|{}", fmt::join(words, "|"));
}

CommandDescription describe_command(const Command& command) {
  CommandDescription description;
  asked_for = &description;
  command.function({});
  asked_for = nullptr;
  return description;
}

void describe(CLI::App& app, const std::string& examples) {
  auto help = std::make_shared<Help>();
  help->column_width(28);
  app.formatter(help);
  app.footer(examples);
  app.set_help_flag("-h,--help", "print this");
}

std::optional<ExitCode> parse_arguments(CLI::App& app, const Arguments& arguments) {
  if (asked_for != nullptr) {
    fill(*asked_for, app);
    return ExitCode::kAsExpected;
  }
  app.allow_extras();  // we report them, for the hint
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    put(app.help());
    return ExitCode::kAsExpected;
  } catch (const CLI::ParseError& e) {
    throw UserError(fmt::format("{}: {}", app.get_name().substr(sizeof("distgrad")), e.what()));
  }
  if (app.remaining_size() > 0) throw_unknown(app, app.remaining());
  return std::nullopt;
}

}  // namespace distgrad
