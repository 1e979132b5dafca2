#include "fuzz/document.h"

#include <algorithm>

#include "scenario/parse.h"
#include "scenario/syntax.h"
#include "scenario/syntax_text.h"

namespace distgrad {
namespace {

void add_steps(const Document& steps, const Place& place, std::vector<Place>& places) {
  if (!steps.is_array()) return;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Document& step = steps[i];
    if (!step.is_object() || step.size() != 1) continue;
    const Place name = place / i / step.begin().key();
    const Document& value = *step.begin();
    if (value.is_string()) places.push_back(name);
    if (const auto kind = kind_of(value)) places.push_back(name / std::string(traits(*kind).name));
    if (value.is_object() && value.contains("args"))  // a call of the user's code
      for (std::size_t k = 0; k < value["args"].size(); ++k)
        if (value["args"][k].is_string()) places.push_back(name / "args" / k);
  }
}

void add_inputs(const Document& inputs, std::vector<Place>& places) {
  for (const auto& [name, input] : inputs.items()) {
    if (!input.is_object()) continue;
    const Place place = Place("/inputs") / name;
    if (input.contains("expr")) places.push_back(place / "expr");
    if (!input.contains("random") || !input["random"].contains("shape")) continue;
    const Document& shape = input["random"]["shape"];
    for (std::size_t i = 0; i < shape.size(); ++i)
      if (shape[i].is_string()) places.push_back(place / "random" / "shape" / i);
  }
}

bool is_word(const Document& value) { return value == "nan" || value == "inf" || value == "-inf"; }

void substitute_in(Document& text, const std::string& name, const Syntax& by) {
  try {
    const SyntaxPtr tree = parse_expression(text.get<std::string>());
    if (free_names(*tree).contains(name)) text = text_of(*substituted(*tree, name, by));
  } catch (const ExpressionError&) {
  }
}

// Returns Python's own functions and the module: the rest of the language has no free names.
const std::set<std::string>& names_of_the_language() {
  static const std::set<std::string> names = {"torch",
                                              "abs",
                                              "bool",
                                              "enumerate",
                                              "float",
                                              "int",
                                              "len",
                                              "max",
                                              "min",
                                              "range",
                                              "sum",
                                              "zip",
                                              "squared_gradient_norm"};
  return names;
}

std::set<std::string> world_names(const Document& document) {
  std::set<std::string> names = {"rank", "world_size"};
  for (const char* key : {"mesh", "groups"})
    if (document.contains(key))
      for (const auto& [group, value] : document[key].items()) {
        names.insert(group + "_rank");
        names.insert(group + "_size");
      }
  return names;
}

bool names_are_bound(const std::string& text, const std::set<std::string>& bound) {
  try {
    for (const std::string& name : free_names(*parse_expression(text)))
      if (!bound.contains(name) && !names_of_the_language().contains(name)) return false;
    return true;
  } catch (const ExpressionError&) {
    return false;
  }
}

bool steps_are_bound(const Document& program, std::set<std::string> bound) {
  for (const Document& step : program["steps"]) {
    const Document& value = value_of_step(step);
    const auto kind = kind_of(value);
    const Document* text = kind ? &value[std::string(traits(*kind).name)] : &value;
    if (text->is_string() && !names_are_bound(text->get<std::string>(), bound)) return false;
    bound.insert(name_of_step(step));
  }
  return names_are_bound(program["loss"].get<std::string>(), bound);
}

bool all_names_are_bound(const Document& document) {
  std::set<std::string> world = world_names(document), bound = world;
  for (const auto& [name, input] : document["inputs"].items()) bound.insert(name);
  if (!steps_are_bound(document, bound)) return false;
  if (document.contains("single_device") && !steps_are_bound(document["single_device"], bound))
    return false;
  for (const Place& place : expressions_of(document)) {
    const std::string where = place.to_string();
    const std::string text = document[place].get<std::string>();
    if (where.starts_with("/inputs") && !names_are_bound(text, world)) return false;
    if (where.starts_with("/truth") && !names_are_bound(text, bound)) return false;
  }
  return true;
}

}  // namespace

std::vector<Place> expressions_of(const Document& document) {
  std::vector<Place> places;
  if (document.contains("steps")) add_steps(document["steps"], Place("/steps"), places);
  if (document.contains("loss")) places.emplace_back("/loss");
  if (document.contains("inputs")) add_inputs(document["inputs"], places);
  if (document.contains("single_device")) {
    add_steps(document["single_device"]["steps"], Place("/single_device/steps"), places);
    places.emplace_back("/single_device/loss");
  }
  if (document.contains("truth"))
    for (const auto& [name, value] : document["truth"].items())
      if (value.is_string() && !is_word(value)) places.push_back(Place("/truth") / name);
  return places;
}

const std::string& name_of_step(const Document& step) {
  static const std::string none;
  if (!step.is_object() || step.size() != 1) return none;
  return step.begin().key();
}
Document& value_of_step(Document& step) { return *step.begin(); }
const Document& value_of_step(const Document& step) { return *step.begin(); }

std::optional<CollectiveKind> kind_of(const Document& value) {
  if (!value.is_object()) return std::nullopt;
  for (const CollectiveTraits& kind : kCollectives)
    if (value.contains(kind.name)) return kind.kind;
  return std::nullopt;
}

int world_size_of(const Document& document) {
  if (document.contains("mesh")) {
    int product = 1;
    for (const Document& size : document["mesh"]) product *= size.get<int>();
    return product;
  }
  const auto found = document.find("world_size");
  if (found == document.end()) return 0;
  if (found->is_array()) return found->size() == 1 ? (*found)[0].get<int>() : 0;
  return found->get<int>();
}

bool drop(Document& object, const std::string& key) {
  return object.is_object() && object.erase(key) > 0;
}

void substitute_name(Document& document, const std::string& name, const std::string& by,
                     Reach reach, std::size_t first) {
  const SyntaxPtr tree = parse_expression(by);
  for (const Place& place : expressions_of(document)) {
    const std::string where = place.to_string();
    const bool program = where.starts_with("/steps/") || where == "/loss";
    if (reach == Reach::kProgram && !program) continue;
    if (where.starts_with("/steps/") && std::stoul(where.substr(7)) < first) continue;
    substitute_in(document[place], name, *tree);
  }
}

bool uses_name(const Document& document, const std::string& name) {
  const std::vector<Place> places = expressions_of(document);
  return std::any_of(places.begin(), places.end(), [&](const Place& place) {
    try {
      return takes_name(document[place].get<std::string>(), name);
    } catch (const ExpressionError&) {
      return true;
    }
  });
}

bool is_valid(const Document& document) {
  try {
    parse_scenario(document.dump(), "candidate");
  } catch (const InvalidScenario&) {
    return false;
  } catch (const Document::exception&) {  // the text is not UTF-8
    return false;
  }
  return all_names_are_bound(document);
}

std::vector<std::size_t> shape_of(const Document& array) {
  std::vector<std::size_t> shape;
  for (const Document* at = &array; at->is_array(); at = &(*at)[0]) {
    shape.push_back(at->size());
    if (at->empty()) break;
  }
  return shape;
}

std::size_t elements_of(const Document& array) {
  std::size_t elements = 1;
  for (const std::size_t size : shape_of(array)) elements *= size;
  return elements;
}

void for_each_number(Document& array, const std::function<void(Document&)>& call) {
  if (!array.is_array()) return call(array);
  for (Document& item : array) for_each_number(item, call);
}

}  // namespace distgrad
