// What the reductions share: a scenario document, and where in it which kind of thing stands.
// Internal to this folder.
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

// Every expression of the program: of steps, loss, inputs, entries of random shapes, single_device
// and truth.
std::vector<Place> expressions_of(const Document&);

// The name and the value of a step; the value is an expression, or an object with a collective.
const std::string& name_of_step(const Document& step);
Document& value_of_step(Document& step);
const Document& value_of_step(const Document& step);
// Of a step's value; nothing where it is no collective.
std::optional<CollectiveKind> kind_of(const Document& value);

// What a world has: `world_size` where it is one number, else the mesh's product; 0 where it is a
// list.
int world_size_of(const Document&);

// Removes a key; true if it was there.
bool drop(Document& object, const std::string& key);

// The document with every use of a name in the expressions of steps and loss exchanged, from step
// `first` on; expressions that do not parse stay. `everywhere`: in the inputs' own expressions and
// truth, too.
enum class Reach { kProgram, kEverywhere };
void substitute_name(Document&, const std::string& name, const std::string& by,
                     Reach = Reach::kProgram, std::size_t first = 0);
bool uses_name(const Document&, const std::string& name);

// Whether the parser takes the file, every expression parses, and every name in one is bound.
bool is_valid(const Document&);

// Arrays: nested lists of numbers, or one.
std::vector<std::size_t> shape_of(const Document& array);
std::size_t elements_of(const Document& array);
// Calls back for each number (or "nan", ...), in row-major order.
void for_each_number(Document& array, const std::function<void(Document&)>&);

}  // namespace distgrad
