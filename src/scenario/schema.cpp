#include "scenario/schema.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "model/backends.h"
#include "model/collective_kind.h"
#include "model/dtype.h"
#include "model/findings.h"
#include "model/libraries.h"
#include "scenario/names.h"
#include "scenario/objective_text.h"
#include "scenario/parts.h"

namespace distgrad {
namespace {

using Json = nlohmann::ordered_json;

Json ref(const std::string& definition) { return {{"$ref", "#/definitions/" + definition}}; }
Json described(Json schema, std::string_view description) {
  schema["description"] = description;
  return schema;
}
Json words(const std::vector<std::string>& names) { return {{"enum", names}}; }
Json list_of(Json items) { return {{"type", "array"}, {"items", std::move(items)}}; }
Json integer(std::int64_t low, std::int64_t high) {
  return {{"type", "integer"}, {"minimum", low}, {"maximum", high}};
}
Json any_of(std::initializer_list<Json> schemas) { return {{"anyOf", schemas}}; }
Json object(Json properties, std::vector<std::string> required) {
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"required", std::move(required)},
          {"additionalProperties", false}};
}
Json map_of(Json values) {
  return {{"type", "object"}, {"additionalProperties", std::move(values)}};
}
Json named(Json values) {
  Json schema = map_of(std::move(values));
  schema["propertyNames"] = ref("name");
  return schema;
}

Json at_least_one(Json object) {
  object["minProperties"] = 1;
  return object;
}

template <class Rows>
std::vector<std::string> names_in(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return names;
}

Json one_or_list(const Json& item) {
  Json list = list_of(item);
  list["minItems"] = 1;
  list["uniqueItems"] = true;
  return any_of({item, list});
}

Json option_schema(const CollectiveTraits& t, std::string_view option) {
  const Json size = integer(0, std::int64_t{1} << 40);
  if (option == "group")
    return described({{"type", "string"}},
                     "a group or mesh axis; without it the whole world takes part");
  if (option == "op")
    return described(words(strings_of(kReduceOpNames)), "the reduction; sum where absent");
  if (option == "factor") return described({{"type", "number"}}, "premul_sum multiplies by it");
  if (option == "root")
    return described(integer(0, kMaxWorldSize - 1),
                     "the root's rank within the group; 0 where absent");
  if (option == "dim")
    return described(integer(-kMaxDim - 1, kMaxDim),
                     t.joins() ? "concatenated along it; stacked on a new leading dim where absent"
                               : "as in torch; 0 where absent");
  if (option == "pairs") {
    Json pair = list_of(integer(0, kMaxWorldSize - 1));
    pair["minItems"] = pair["maxItems"] = 2;
    return described(list_of(pair),
                     "[source, destination] within the group; a destination appears once");
  }
  return t.exchanges()
             ? described(list_of(list_of(size)),
                         "row i is how rank i cuts its operand; even where absent")
             : described(list_of(size), "one size for each rank of the group; even where absent");
}

Json collective_schema(const CollectiveTraits& t) {
  Json properties = {{std::string(t.name),
                      described(ref("expression"), "the operand; gives " + std::string(t.result))}};
  for (const std::string& option : options_of(t)) properties[option] = option_schema(t, option);
  std::vector<std::string> required = {std::string(t.name)};
  if (t.takes_pairs) required.emplace_back("pairs");
  Json schema = object(std::move(properties), std::move(required));
  if (t.takes_op) {
    schema["if"] = {{"properties", {{"op", {{"const", "premul_sum"}}}}}, {"required", {"op"}}};
    schema["then"] = {{"required", {"factor"}}};
    schema["else"] = {{"not", {{"required", {"factor"}}}}};
  }
  return schema;
}

Json steps_schema(Json what, std::string_view description) {
  Json step = named(std::move(what));
  step["minProperties"] = step["maxProperties"] = 1;
  return described(list_of(std::move(step)), description);
}

Json layout_definition() {
  const Json shard = object({{"shard", described(integer(-kMaxDim - 1, kMaxDim),
                                                 "cut along this dimension as torch.chunk does")}},
                            {"shard"});
  const Json along_axis = any_of({words({"replicate", "invariant"}), shard});
  return any_of({described(words({"local", "replicate", "invariant"}),
                           "local: each rank's own leaf; replicate: copies whose gradients are "
                           "summed; invariant: copies that each hold the full gradient"),
                 shard, described(named(along_axis), "one word for every mesh axis")});
}

Json random_definition() {
  Json shape = list_of(any_of({integer(0, std::int64_t{1} << 27), ref("expression")}));
  return object(
      {{"shape", described(shape, "integers or expressions over rank, world_size and the groups")},
       {"kind", described(words({"integers", "normal", "uniform"}),
                          "the distribution; integers are exact in every dtype")},
       {"low", described({{"type", "number"}, {"default", -4}}, "the least value")},
       {"high", described({{"type", "number"}, {"default", 4}}, "the greatest value")},
       {"seed", described({{"type", "integer"}, {"minimum", 0}, {"default", 0}},
                          "another one gives other values")}},
      {"shape"});
}

Json input_definition() {
  Json input = object(
      {{"value", described(ref("tensor"), "that value on every rank")},
       {"by_rank", described(list_of(ref("tensor")), "one value for each rank; layout local only")},
       {"expr", described(ref("expression"), "over rank, world_size and the group names")},
       {"random",
        described(random_definition(), "reproducible from the file, by seed, input name and rank")},
       {"requires_grad", described({{"type", "boolean"}, {"default", true}},
                                   "false: no gradient is computed or compared")},
       {"layout",
        described(layout_definition(), "how the value lies on the ranks; local where absent")}},
      {});
  input["oneOf"] = Json::array();
  for (const char* key : {"value", "by_rank", "expr", "random"})
    input["oneOf"].push_back({{"required", {key}}});
  return any_of({ref("tensor"), input});
}

Json expectation_definition() {
  Json when =
      object({{"world_size", described(integer(1, kMaxWorldSize), "the number of ranks")},
              {"dtype", described(words(names_in(kDTypes)), "the case's dtype")},
              {"backend", described(words(names_in(kBackends)), "what carries the collectives")},
              {"torch", described({{"type", "string"}, {"pattern", "^(>=|<=|==|!=|>|<)"}},
                                  "a condition such as >=2.13, or >=2.11,<2.13")}},
             {});
  when = at_least_one(std::move(when));
  const Json by_rank = list_of(any_of({ref("tensor"), {{"type", "null"}}}));
  const Json expectation = object(
      {{"verdict",
        described(words({kVerdicts.begin(), kVerdicts.end()}), "what the case comes to")},
       {"finding", described(words(names_in(kFindings)), "it is among the findings")},
       {"collective", described(words(names_in(kCollectives)), "it is the one that is blamed")},
       {"gradients",
        described(map_of(by_rank), "input -> observed gradients by rank, null where missing")},
       {"message", described({{"type", "string"}, {"minLength", 1}},
                             "a part of the error's or the skip's text")},
       {"when", described(when, "the cases that it is for; all of these hold")}},
      {"verdict"});
  const Json one = any_of({{{"const", "match"}}, expectation});
  Json list = list_of(one);
  list["minItems"] = 1;
  return any_of({one, described(list, "the first whose `when` applies counts")});
}

Json subjects_schema() {
  std::string kinds;
  for (const CollectiveTraits& t : kCollectives)
    kinds += (kinds.empty() ? "" : "|") + std::string(t.name);
  Json schema = map_of(ref("expectation"));
  schema["minProperties"] = 1;
  schema["propertyNames"] = any_of({words(names_in(subjects())),
                                    {{"pattern", "^(python|library):."}},
                                    {{"pattern", "^(" + kinds + ")=."}}});
  return described(schema,
                   "implementations under test and what is expected of each; { \"reference\": "
                   "\"match\" } where absent");
}

Json groups_schema() {
  const Json size = integer(1, kMaxWorldSize);
  Json ranks = list_of(integer(0, kMaxWorldSize - 1));
  ranks["minItems"] = 1;
  Json lists = list_of(ranks);
  lists["minItems"] = 1;
  return described(
      named(any_of(
          {described(lists, "the ranks of each group; every rank is in exactly one list"),
           object({{"size", described(size, "consecutive blocks of so many ranks")}}, {"size"}),
           object({{"stride", described(size, "ranks equal modulo it are together")}},
                  {"stride"})})),
      "named partitions of the ranks");
}

Json objective_schema() {
  const Json word = words({"sum", "mean", "replicated"});
  return described(
      any_of(
          {word,
           object({{"rank", described(integer(0, kMaxWorldSize - 1), "the rank whose loss it is")}},
                  {"rank"}),
           at_least_one(named(word))}),
      objective_choices());
}

Json sync_schema() {
  const Json word = words({"sum", "mean"});
  return described(map_of(any_of({word, at_least_one(named(word))})),
                   "input -> how its gradient is all-reduced after backward; only along axes where "
                   "its layout is replicate");
}

Json truth_schema() {
  return described(map_of(any_of({ref("tensor"), ref("expression")})),
                   "input -> hand-derived truth: by rank for local inputs, else the full tensor; "
                   "or a closed form");
}

Json call_definition() {
  const Json code = {{"type", "string"}, {"pattern", "^python:.+:.+$"}};
  return described(
      object({{"call", described(code, "what each rank calls; FILE.py is sought beside this file")},
              {"args", described(list_of(ref("expression")), "what it gets")},
              {"simulate",
               described(code,
                         "the same for all ranks: gets, for each argument, the list over the "
                         "ranks, and returns the list of results")}},
             {"call", "args"}),
      "code of your own that communicates as it likes; runs only with --allow-code");
}

Json definitions() {
  return {{"name",
           {{"pattern", "^[A-Za-z_][A-Za-z0-9_]*$"},
            {"maxLength", 100},
            {"not", words(reserved_names())}}},
          {"expression", described({{"type", "string"}, {"minLength", 1}, {"maxLength", 10000}},
                                   "Python, as TorchScript compiles it")},
          {"number", any_of({{{"type", "number"}}, words({"nan", "inf", "-inf"})})},
          {"tensor", any_of({ref("number"), list_of(ref("tensor"))})},
          {"collective",
           {{"anyOf",
             [] {
               Json kinds = Json::array();
               for (const CollectiveTraits& t : kCollectives) kinds.push_back(collective_schema(t));
               return kinds;
             }()}}},
          {"call", call_definition()},
          {"input", input_definition()},
          {"expectation", expectation_definition()}};
}

}  // namespace

std::string scenario_schema() {
  const Json size = integer(1, kMaxWorldSize);
  Json mesh = named(size);
  mesh["minProperties"] = 1;
  const Json bound = described({{"type", "number"}, {"minimum", 0}}, "rtol * |truth| + atol");
  Json inputs = named(ref("input"));
  inputs["minProperties"] = 1;
  Json schema = object(
      {{"$schema", described({{"type", "string"}}, "where an editor finds this schema; not read")},
       {"format", described({{"const", 1}}, "the format's version")},
       {"name", described({{"type", "string"}, {"minLength", 1}}, "the file's stem where absent")},
       {"note", described({{"type", "string"}}, "what the scenario shows")},
       {"world_size",
        described(one_or_list(size), "the number of ranks, or a list: one case each")},
       {"mesh",
        described(mesh, "axes of the world, the last varies fastest; each is also a group")},
       {"groups", groups_schema()},
       {"dtype", described(one_or_list(words(names_in(kDTypes))), "float64 where absent")},
       {"backend", described(one_or_list(words(names_in(kBackends))), "gloo where absent")},
       {"inputs", described(inputs, "the leaves")},
       {"steps", steps_schema(any_of({ref("expression"), ref("collective"), ref("call")}),
                              "one name each: an expression, a collective or a call")},
       {"loss", described(any_of({ref("expression"), ref("call")}), "one element on each rank")},
       {"objective", objective_schema()},
       {"sync", sync_schema()},
       {"tolerance",
        described(
            any_of({{{"const", 0}}, object({{"rtol", bound}, {"atol", bound}}, {"rtol", "atol"})}),
            "0: equal; absent: derived from the program")},
       {"truth", truth_schema()},
       {"single_device",
        described(
            object({{"steps", steps_schema(ref("expression"), "expressions only")},
                    {"loss", described(ref("expression"), "one element; the objective's value")}},
                   {"steps", "loss"}),
            "the program as it would be on one device; local inputs are lists over the ranks")},
       {"subjects", subjects_schema()},
       {"timeout_s", described({{"type", "number"}, {"exclusiveMinimum", 0}, {"maximum", 604800}},
                               "seconds for one case; 30 where absent")}},
      {"inputs", "steps", "loss", "objective"});
  schema["anyOf"] = {{{"required", {"world_size"}}}, {{"required", {"mesh"}}}};
  schema["definitions"] = definitions();
  Json head = {{"$schema", "http://json-schema.org/draft-07/schema#"},
               {"title", "distgrad scenario, format 1"}};
  head.update(schema);
  return head.dump(2) + "\n";
}

}  // namespace distgrad
