#include "golden/schema.h"

#include <string>
#include <vector>

#include "model/dtype.h"

namespace distgrad::golden {
namespace {

using Json = nlohmann::ordered_json;

Json ref(const char* name) { return {{"$ref", std::string("#/$defs/") + name}}; }
Json list_of(Json items) { return {{"type", "array"}, {"items", std::move(items)}}; }
Json text(const char* description) { return {{"type", "string"}, {"description", description}}; }
Json described(Json schema, const char* description) {
  schema["description"] = description;
  return schema;
}
Json either(Json a, Json b) { return {{"anyOf", Json::array({std::move(a), std::move(b)})}}; }

Json has(const char* key) { return {{"required", std::vector<std::string>{key}}}; }

Json object(Json properties, std::vector<std::string> required) {
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"required", std::move(required)},
          {"additionalProperties", false}};
}

Json number() {
  return either({{"type", "number"}}, {{"enum", std::vector<std::string>{"nan", "inf", "-inf"}}});
}

Json tensor() {
  return {{"description", "Nested lists; only the shape where there are no elements."},
          {"anyOf",
           Json::array({ref("number"), list_of(ref("tensor")),
                        object({{"shape", described(ref("shape"), "The shape of no elements.")}},
                               {"shape"})})}};
}

Json bound() {
  return {{"description",
           "How far a right gradient may lie off: a number for all elements, or one for each, "
           "shaped as the values. 0: not at all."},
          {"anyOf", Json::array({ref("number"), list_of(ref("tensor"))})}};
}

Json summary() {
  const Json norms =
      object({{"l1", described(ref("number"), "The sum of the absolute values.")},
              {"l2", described(ref("number"), "The square root of the sum of the squares.")},
              {"max", described(ref("number"), "The largest absolute value.")}},
             {"l1", "l2", "max"});
  return object(
      {{"shapes", described(list_of(ref("shape")), "Of each part, in the order of the ranks.")},
       {"sha256", text("Of the elements of all parts as float64, little endian; exact ones only.")},
       {"norms", described(norms, "Of all parts together.")},
       {"first", described(list_of(ref("number")), "The first eight elements.")}},
      {"shapes", "norms", "first"});
}

Json gradient() {
  Json schema =
      object({{"layout", text("local, replicate, invariant, shard:0, or by mesh axis.")},
              {"by_rank", described(list_of(ref("tensor")), "The truth on each rank.")},
              {"full", described(ref("tensor"), "The truth of the whole tensor.")},
              {"summary", described(ref("summary"), "In place of over 1,000 elements.")},
              {"bound", described(ref("bound"), "How far a right gradient may lie off.")}},
             {"layout", "bound"});
  schema["description"] = "by_rank for local inputs, full for the others, summary for large ones.";
  schema["oneOf"] = Json::array({has("by_rank"), has("full"), has("summary")});
  return schema;
}

Json case_record() {
  std::vector<std::string> dtypes;
  for (const DTypeTraits& traits : kDTypes) dtypes.emplace_back(traits.name);
  const Json gradients = {{"type", "object"}, {"additionalProperties", ref("gradient")}};
  return object(
      {{"objective", text("sum, mean, replicated, rank:1, dp=mean+tp=replicated")},
       {"world_size", described({{"type", "integer"}, {"minimum", 1}}, "The number of ranks.")},
       {"dtype", described({{"enum", std::move(dtypes)}},
                           "What a run computes in; the values here are float64.")},
       {"exact", {{"type", "boolean"}, {"description", "Every bound is 0."}}},
       {"losses", described(list_of(ref("number")), "By rank.")},
       {"loss_bound", described(either(ref("number"), list_of(ref("number"))),
                                "How far a right loss may lie off: for all, or by rank.")},
       {"gradients", described(either(gradients, {{"type", "null"}}),
                               "Input: its true gradient. null: none; `why` says so.")},
       {"why", text("Why there are no gradients to hold anybody to.")}},
      {"objective", "world_size", "dtype", "exact", "losses", "loss_bound", "gradients"});
}

}  // namespace

Json schema() {
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "distgrad's golden gradient file, format 1"}};
  root.update(object(
      {{"format", described({{"const", 1}}, "The format's version.")},
       {"scenario_sha256",
        described({{"type", "string"}, {"pattern", "^[0-9a-f]{64}$"}},
                  "Of the scenario in canonical form, without what has no part in the truth.")},
       {"cases", described(list_of(ref("case")), "One for each objective, world size and dtype.")}},
      {"format", "scenario_sha256", "cases"}));
  root["$defs"] = {
      {"number", number()},   {"shape", list_of({{"type", "integer"}, {"minimum", 0}})},
      {"tensor", tensor()},   {"bound", bound()},
      {"summary", summary()}, {"gradient", gradient()},
      {"case", case_record()}};
  return root;
}

}  // namespace distgrad::golden
