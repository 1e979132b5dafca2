// Offers what reductions share: a scenario document and the places of its parts. Internal to this
// folder.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "model/collective_kind.h"

namespace distgrad {

using Document = nlohmann::ordered_json;
using Place = Document::json_pointer;

// Returns every expression of the program: of steps, loss, inputs, entries of random shapes,
// single_device and truth.
std::vector<Place> expressions_of(const Document&);

// Return the name and the value of a step. The value is an expression, or an object with a
// collective.
const std::string& name_of_step(const Document& step);
Document& value_of_step(Document& step);
const Document& value_of_step(const Document& step);
// Returns the kind in a step's value, or nothing if it is no collective.
std::optional<CollectiveKind> kind_of(const Document& value);

// Returns `world_size` if it is one number, else the mesh's product; 0 if it is a list.
int world_size_of(const Document&);

// Removes a key. Returns true if it was there.
bool drop(Document& object, const std::string& key);

// Exchanges every use of a name in the expressions of steps and loss, from step `first` on.
// Expressions that do not parse stay. kEverywhere includes the inputs' own expressions and truth.
enum class Reach { kProgram, kEverywhere };
void substitute_name(Document&, const std::string& name, const std::string& by,
                     Reach = Reach::kProgram, std::size_t first = 0);
bool uses_name(const Document&, const std::string& name);

// Returns true if the parser takes the file, and every expression parses and uses only bound names.
bool is_valid(const Document&);

// An array here is a number, or nested lists of numbers.
std::vector<std::size_t> shape_of(const Document& array);
std::size_t elements_of(const Document& array);
// Calls back for each number (or "nan", ...) in row-major order.
void for_each_number(Document& array, const std::function<void(Document&)>&);

}  // namespace distgrad
