// Reads steps, loss and single_device.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "model/subject_text.h"
#include "scenario/parts.h"
#include "scenario/printable.h"

namespace distgrad {
namespace {

constexpr std::size_t kMostSteps = 10'000;
constexpr std::size_t kLongestExpression = 10'000;

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (const CollectiveTraits& t : kCollectives) names.emplace_back(t.name);
  return names;
}

std::vector<std::string> group_names(const Scenario& scenario) {
  std::vector<std::string> names = axis_names(scenario);
  for (const GroupSpec& group : scenario.groups) names.push_back(group.name);
  return names;
}

const std::vector<std::string>& all_options() {
  static const std::vector<std::string> options = {"group", "op",     "factor", "root",
                                                   "dim",   "splits", "pairs"};
  return options;
}

void read_op(const JsonValue& body, CollectiveCall& call, Problems& problems) {
  const auto op = body.member("op"), factor = body.member("factor");
  bool op_is_known = true;
  if (op) {
    const auto name = read_name_among(*op, "op", strings_of(kReduceOpNames), problems);
    op_is_known = name.has_value();
    if (name) call.op = *reduce_op_named(*name);
  }
  if (factor) call.factor = read_number(*factor, problems).value_or(1);
  if (!op_is_known) return;
  if (factor && call.op != ReduceOp::kPremulSum)
    problems.at_key(*factor, fmt::format("a factor is for \"op\": \"premul_sum\", and the op is {}",
                                         in_quotes(name_of(call.op))));
  if (!factor && call.op == ReduceOp::kPremulSum)
    problems.missing(body, "factor", "is missing; premul_sum multiplies by it: \"factor\": 0.5");
}

bool read_integers(const JsonValue& list, std::string_view expected,
                   std::vector<std::int64_t>& into, Problems& problems) {
  constexpr std::int64_t kMostElements = std::int64_t{1} << 40;
  if (!read_list(list, expected, problems)) return false;
  for (const JsonValue& item : list.children()) {
    const auto integer = read_integer(item, 0, kMostElements, problems);
    if (!integer) return false;
    into.push_back(*integer);
  }
  return true;
}

void read_splits(const JsonValue& value, CollectiveCall& call, Problems& problems) {
  if (!traits(call.kind).exchanges()) {
    call.splits.emplace_back();
    read_integers(value, "one size for each rank of the group, as in [2, 1]", call.splits.back(),
                  problems);
    if (value.is_list() && value.size() == 0)
      problems.at(value, "is empty; give one size for each rank of the group");
    return;
  }
  constexpr std::string_view kExpected =
      "one row for each rank of the group, as in [[1, 2], [0, 3]]";
  if (!read_list(value, kExpected, problems)) return;
  if (value.size() == 0) problems.at(value, "is empty; give one row for each rank of the group");
  for (const JsonValue& row : value.children()) {
    call.splits.emplace_back();
    if (!read_integers(row, "how this rank cuts its operand, as in [1, 2]", call.splits.back(),
                       problems))
      return;
  }
}

void read_pairs(const JsonValue& value, CollectiveCall& call, Problems& problems) {
  if (!read_list(value, "as in [[0, 1], [1, 0]]", problems)) return;
  std::set<int> destinations;
  for (const JsonValue& item : value.children()) {
    if (!item.is_list() || item.size() != 2) {
      problems.at(item, "must be [source, destination], not " +
                            (item.is_list() ? fmt::format("a list of {}", item.size())
                                            : description(item)));
      return;
    }
    const std::vector<JsonValue> ends = item.children();
    const auto source = read_integer(ends[0], 0, kMaxWorldSize - 1, problems);
    const auto destination = read_integer(ends[1], 0, kMaxWorldSize - 1, problems);
    if (!source || !destination) return;
    if (!destinations.insert(static_cast<int>(*destination)).second)
      problems.at(item,
                  fmt::format("rank {} is a destination twice; a rank receives from one source",
                              *destination));
    call.pairs.emplace_back(static_cast<int>(*source), static_cast<int>(*destination));
  }
}

void read_options(const JsonValue& body, CollectiveCall& call, const Parts& parts) {
  Problems& problems = parts.problems;
  if (const auto group = body.member("group")) {
    const std::vector<std::string> names = group_names(parts.scenario);
    if (names.empty()) {
      problems.at(*group,
                  "unknown group; the scenario has neither \"groups\" nor a \"mesh\" (without a "
                  "group the whole world takes part)");
    } else if (const auto name = read_name_among(*group, "group", names, problems)) {
      call.group = *name;
    }
  }
  const CollectiveTraits& t = traits(call.kind);
  if (t.takes_op) read_op(body, call, problems);
  if (const auto root = body.member("root"); root && t.takes_root)
    call.root = static_cast<int>(read_integer(*root, 0, kMaxWorldSize - 1, problems).value_or(0));
  if (const auto dim = body.member("dim"); dim && t.takes_dim)
    call.dim = static_cast<int>(read_integer(*dim, -kMaxDim - 1, kMaxDim, problems).value_or(0));
  if (const auto splits = body.member("splits"); splits && t.takes_splits)
    read_splits(*splits, call, problems);
  if (!t.takes_pairs) return;
  if (const auto pairs = body.member("pairs")) {
    read_pairs(*pairs, call, problems);
  } else {
    problems.missing(body, "pairs",
                     "is missing; write \"pairs\": [[0, 1], [1, 0]], source and destination");
  }
}

// Returns the member that names the collective. Returns nothing and adds a problem if there is not
// exactly one.
std::optional<JsonValue> find_kind(const JsonValue& body, Problems& problems) {
  std::vector<std::string> kinds = kind_names();
  kinds.emplace_back("call");  // for "did you mean"
  std::vector<JsonValue> found, unknown;
  for (const JsonValue& member : body.children()) {
    if (collective_named(member.key())) found.push_back(member);
    const auto& options = all_options();
    const bool is_option = std::find(options.begin(), options.end(), member.key()) != options.end();
    if (!collective_named(member.key()) && !is_option) unknown.push_back(member);
  }
  if (found.size() == 1) return found.front();
  if (found.size() > 1) {
    problems.at_key(found[1], fmt::format("a step is one collective; here is {} beside {}",
                                          in_quotes(found[1].key()), in_quotes(found[0].key())));
    return std::nullopt;
  }
  for (const JsonValue& member : unknown)
    if (const std::string hint = name_hint(member.key(), kinds); !hint.empty()) {
      problems.at_key(member, "unknown collective " + in_quotes(member.key()) + hint);
      return std::nullopt;
    }
  kinds.pop_back();
  if (unknown.empty()) {
    problems.at(body, "names no collective; the collectives are " + choices(kinds));
  } else {
    problems.at_key(unknown.front(), fmt::format("unknown collective {}; the collectives are {}",
                                                 in_quotes(unknown.front().key()), choices(kinds)));
  }
  return std::nullopt;
}

std::optional<CollectiveCall> read_collective(const JsonValue& body, const Parts& parts) {
  const auto kind = find_kind(body, parts.problems);
  if (!kind) return std::nullopt;
  CollectiveCall call;
  call.kind = *collective_named(kind->key());
  const CollectiveTraits& t = traits(call.kind);
  const std::vector<std::string> options = options_of(t);
  for (const JsonValue& member : body.children()) {
    if (member.key() == kind->key()) continue;
    if (std::find(options.begin(), options.end(), member.key()) != options.end()) continue;
    const auto& others = all_options();
    if (std::find(others.begin(), others.end(), member.key()) != others.end()) {
      parts.problems.at_key(member, fmt::format("{} takes no {}; it takes {}", t.name,
                                                in_quotes(member.key()), fmt::join(options, ", ")));
    } else {
      std::string hint = name_hint(member.key(), options);
      if (hint.empty()) hint = fmt::format("; {} takes {}", t.name, fmt::join(options, ", "));
      parts.problems.at_key(member, "unknown option " + in_quotes(member.key()) + hint);
    }
    if (parts.problems.full()) return std::nullopt;
  }
  auto operand = read_expression(*kind, parts.problems);
  if (operand) call.operand = std::move(*operand);
  read_options(body, call, parts);
  return call;
}

// Returns the one member of a step's object.
std::optional<JsonValue> name_of_step(const JsonValue& item, Problems& problems) {
  if (!read_object(item, "{ \"y\": \"2 * x\" } or { \"y\": { \"all_reduce\": \"x\" } }", problems))
    return std::nullopt;
  if (item.size() == 1) return item.children().front();
  if (item.size() == 0) {
    problems.at(item,
                "is empty; a step is { \"y\": \"2 * x\" } or { \"y\": { \"all_reduce\": \"x\" } }");
    return std::nullopt;
  }
  const JsonValue first = item.children()[0], second = item.children()[1];
  for (const JsonValue& member : item.children())
    if (collective_named(member.key()) && member.is_text()) {
      problems.at_key(
          member,
          fmt::format("a collective stands inside a name; write {{ \"y\": {{ {}: {}, ... }} }}",
                      in_quotes(member.key()), in_quotes(member.text())));
      return std::nullopt;
    }
  problems.at_key(second,
                  fmt::format("a step binds one name; begin another step for {} after that for {}",
                              in_quotes(second.key()), in_quotes(first.key())));
  return std::nullopt;
}

// Returns true if this is a call of code and nothing else.
bool names_code(const JsonValue& body, Problems& problems) {
  if (!body.member("call")) return false;
  for (const JsonValue& member : body.children())
    if (collective_named(member.key())) {
      problems.at_key(
          member, fmt::format("a step is one collective or one call; here is {} beside \"call\"",
                              in_quotes(member.key())));
      return false;
    }
  return true;
}

// Reads "python:FILE.py:NAME": what is called, with its file.
std::optional<std::string> read_code(const JsonValue& value, Problems& problems) {
  constexpr std::string_view kForm = "write \"python:FILE.py:NAME\" or \"python:MODULE:NAME\"";
  if (!value.is_text()) {
    problems.at(value, fmt::format("must name a function; {}", kForm));
    return std::nullopt;
  }
  const SubjectPart part = read_part(value.text());
  if (!part.is_python() || part.mode || part.place.empty() || part.name.empty()) {
    problems.at(value, fmt::format("{} names no function; {}", in_quotes(part.text), kForm));
    return std::nullopt;
  }
  return part.text;
}

void read_arguments(const JsonValue& body, CodeCall& call, Problems& problems) {
  const auto arguments = body.member("args");
  if (!arguments) {
    problems.missing(
        body, "args",
        "is missing; write \"args\": [\"x\", \"w\"], expressions that the function gets");
  } else if (read_list(*arguments, "expressions, as in [\"x\", \"w\"]", problems)) {
    for (const JsonValue& item : arguments->children())
      if (auto argument = read_expression(item, problems))
        call.arguments.push_back(std::move(*argument));
  }
}

std::optional<CodeCall> read_code_call(const JsonValue& body, Problems& problems) {
  check_keys(body, {"call", "args", "simulate"}, problems);
  CodeCall call;
  if (const auto code = read_code(*body.member("call"), problems)) call.code = *code;
  read_arguments(body, call, problems);
  if (const auto simulate = body.member("simulate"))
    call.simulate = read_code(*simulate, problems).value_or("");
  return call;
}

bool is_bound(const Scenario& scenario, const std::string& name) {
  const auto has_name = [&](const auto& list) {
    return std::any_of(list.begin(), list.end(),
                       [&](const auto& item) { return item.name == name; });
  };
  return has_name(scenario.inputs) || has_name(scenario.steps) || has_name(scenario.mesh) ||
         has_name(scenario.groups);
}

// Turns a loss that is a call into one more step, whose value is the loss.
void read_called_loss(const JsonValue& loss, Parts& parts) {
  if (!names_code(loss, parts.problems)) return;
  auto call = read_code_call(loss, parts.problems);
  if (!call) return;
  std::string name = "loss";
  while (is_bound(parts.scenario, name)) name += "_";
  parts.scenario.steps.push_back({name, loss.pointer(), std::move(*call)});
  parts.scenario.loss = {name, loss.pointer()};
}

std::optional<Step> read_step(const JsonValue& item, const Parts& parts) {
  const auto member = name_of_step(item, parts.problems);
  if (!member) return std::nullopt;
  Step step;
  step.name = member->key();
  step.pointer = member->pointer();
  if (member->is_object()) {
    if (auto code = names_code(*member, parts.problems) ? read_code_call(*member, parts.problems)
                                                        : std::nullopt) {
      step.what = std::move(*code);
      return step;
    }
    if (member->member("call")) return std::nullopt;
    auto call = read_collective(*member, parts);
    if (!call) return std::nullopt;
    step.what = std::move(*call);
  } else {
    auto expression = read_expression(*member, parts.problems);
    if (!expression) return std::nullopt;
    step.what = std::move(*expression);
  }
  return step;
}

// Returns true if the list may be read.
bool check_steps(const JsonValue& steps, Problems& problems) {
  if (!read_list(steps, "as in [{ \"y\": \"2 * x\" }]", problems)) return false;
  if (steps.size() <= kMostSteps) return true;
  problems.at(steps, fmt::format("has more than {} steps", kMostSteps));
  return false;
}

std::optional<Expression> read_loss(const JsonValue& object, Problems& problems) {
  const auto loss = object.member("loss");
  if (loss && loss->is_object() && loss->member("call")) {
    problems.at(*loss, "one device has no calls; write what they compute as an expression");
    return std::nullopt;
  }
  if (loss) return read_expression(*loss, problems);
  problems.missing(object, "loss",
                   "is missing; write \"loss\": \"y.sum()\", one element on each rank");
  return std::nullopt;
}

}  // namespace

std::vector<std::string> options_of(const CollectiveTraits& t) {
  std::vector<std::string> options = {"group"};
  if (t.takes_op) options.insert(options.end(), {"op", "factor"});
  if (t.takes_root) options.emplace_back("root");
  if (t.takes_dim) options.emplace_back("dim");
  if (t.takes_splits) options.emplace_back("splits");
  if (t.takes_pairs) options.emplace_back("pairs");
  return options;
}

std::optional<Expression> read_expression(const JsonValue& value, Problems& problems) {
  if (!value.is_text()) {
    problems.at(value, "must be an expression, a text in double quotes, not " + description(value));
    return std::nullopt;
  }
  const std::string& text = value.text();
  std::string wrong;
  if (text.find_first_not_of(" \t") == std::string::npos) wrong = "the expression is empty";
  // A line break would end the expression and begin a statement.
  if (std::any_of(text.begin(), text.end(),
                  [](unsigned char c) { return (c < 0x20 && c != '\t') || c == 0x7f; }))
    wrong = "an expression is one line without control characters";
  if (text.size() > kLongestExpression)
    wrong =
        fmt::format("the expression is longer than {} characters; use steps", kLongestExpression);
  if (wrong.empty()) return Expression{text, value.pointer()};
  problems.at(value, wrong);
  return std::nullopt;
}

void read_steps(Parts& parts) {
  if (const auto steps = parts.key("steps"); !steps) {
    parts.problems.missing(
        parts.root, "steps",
        "is missing; write \"steps\": [{ \"y\": { \"all_reduce\": \"x\" } }], or []");
  } else if (check_steps(*steps, parts.problems)) {
    for (const JsonValue& item : steps->children()) {
      if (auto step = read_step(item, parts)) parts.scenario.steps.push_back(std::move(*step));
      if (parts.problems.full()) return;
    }
  }
  if (const auto loss = parts.key("loss"); loss && loss->is_object() && loss->member("call"))
    read_called_loss(*loss, parts);
  else if (auto text = read_loss(parts.root, parts.problems))
    parts.scenario.loss = std::move(*text);
}

void read_single_device(Parts& parts) {
  const auto single = parts.key("single_device");
  if (!single || !read_object(*single, "{ \"steps\": [], \"loss\": \"x[0]\" }", parts.problems))
    return;
  check_keys(*single, {"steps", "loss"}, parts.problems);
  SingleDevice program;
  const auto steps = single->member("steps");
  if (!steps)
    parts.problems.missing(*single, "steps", "is missing; write \"steps\": [] if there are none");
  if (steps && check_steps(*steps, parts.problems))
    for (const JsonValue& item : steps->children()) {
      const auto member = name_of_step(item, parts.problems);
      if (member && member->is_object()) {
        parts.problems.at(
            *member, "one device has no collectives; write what they compute as an expression");
      } else if (auto step = member ? read_step(item, parts) : std::nullopt) {
        program.steps.push_back(std::move(*step));
      }
      if (parts.problems.full()) return;
    }
  if (auto loss = read_loss(*single, parts.problems)) program.loss = std::move(*loss);
  parts.scenario.single_device = std::move(program);
}

}  // namespace distgrad
