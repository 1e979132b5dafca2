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
          {"anyOf", Json::array({ref("number"), list_of(ref("tensor")),
                                 object({{"shape", ref("shape")}}, {"shape"})})}};
}

Json bound() {
  return {{"description",
           "How far a right gradient may lie off: a number for all elements, or one for each, "
           "shaped as the values. 0: not at all."},
          {"anyOf", Json::array({ref("number"), list_of(ref("tensor"))})}};
}

Json summary() {
  const Json norms = object({{"l1", ref("number")}, {"l2", ref("number")}, {"max", ref("number")}},
                            {"l1", "l2", "max"});
  return object(
      {{"shapes", list_of(ref("shape"))},
       {"sha256", text("Of the elements of all parts as float64, little endian; exact ones only.")},
       {"norms", norms},
       {"first", list_of(ref("number"))}},
      {"shapes", "norms", "first"});
}

Json gradient() {
  Json schema = object({{"layout", text("local, replicate, invariant, shard:0, or by mesh axis.")},
                        {"by_rank", list_of(ref("tensor"))},
                        {"full", ref("tensor")},
                        {"summary", ref("summary")},
                        {"bound", ref("bound")}},
                       {"layout", "bound"});
  schema["description"] = "by_rank for local inputs, full for the others, summary for large ones.";
  schema["oneOf"] = Json::array({has("by_rank"), has("full"), has("summary")});
  return schema;
}

Json case_record() {
  std::vector<std::string> dtypes;
  for (const DTypeTraits& traits : kDTypes) dtypes.emplace_back(traits.name);
  const Json gradients = {{"type", "object"}, {"additionalProperties", ref("gradient")}};
  return object({{"objective", text("sum, mean, replicated, rank:1, dp=mean+tp=replicated")},
                 {"world_size", {{"type", "integer"}, {"minimum", 1}}},
                 {"dtype", {{"enum", std::move(dtypes)}}},
                 {"exact", {{"type", "boolean"}, {"description", "Every bound is 0."}}},
                 {"losses", list_of(ref("number"))},
                 {"loss_bound", either(ref("number"), list_of(ref("number")))},
                 {"gradients", either(gradients, {{"type", "null"}})},
                 {"why", text("Why there are no gradients to hold anybody to.")}},
                {"objective", "world_size", "dtype", "exact", "losses", "loss_bound", "gradients"});
}

}  // namespace

Json schema() {
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "distgrad's golden gradient file, format 1"}};
  root.update(object({{"format", {{"const", 1}}},
                      {"scenario_sha256", {{"type", "string"}, {"pattern", "^[0-9a-f]{64}$"}}},
                      {"cases", list_of(ref("case"))}},
                     {"format", "scenario_sha256", "cases"}));
  root["$defs"] = {
      {"number", number()},   {"shape", list_of({{"type", "integer"}, {"minimum", 0}})},
      {"tensor", tensor()},   {"bound", bound()},
      {"summary", summary()}, {"gradient", gradient()},
      {"case", case_record()}};
  return root;
}

}  // namespace distgrad::golden
