// Lists what a scenario may call: the pure tensor functions, under their names in Python. Anything
// else of torch is refused. docs/expressions.md shows this list.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace distgrad {

// Says where Python has a function.
enum Place : unsigned {
  kFunction = 1,  // torch.NAME(...)
  kMethod = 2,    // x.NAME(...)
  kLinalg = 4,    // torch.linalg.NAME(...)
};

struct AllowedFunction {
  std::string_view name;
  unsigned places;  // of Place
};

struct AllowedGroup {
  std::string_view heading;
  std::span<const AllowedFunction> functions;
};

// ATen's operator has the same name (for torch.linalg: linalg_NAME).
std::span<const AllowedGroup> allowed_groups();

// Describes a function of torch.nn.functional: Python's signature, and the ATen operator behind it.
struct FunctionalFunction {
  std::string_view name;
  std::string_view arguments;  // Python's signature as offered, in torch's schema language; empty:
                               // torch.NAME's own
  std::string_view operator_name;
  std::string_view order;  // the operator's arguments as indices into `arguments`, one digit each;
                           // empty: as they are
};
std::span<const FunctionalFunction> functional_functions();

// Lists attributes of tensors that are not called, with the operator that gives each.
struct AllowedAttribute {
  std::string_view name;
  std::string_view operator_name;
};
std::span<const AllowedAttribute> allowed_attributes();

// Lists data types and constants: torch.float32, torch.pi.
struct TorchDType {
  std::string_view name;
  std::string_view scalar_type;  // torch's canonical name
};
std::span<const TorchDType> torch_dtypes();
struct TorchConstant {
  std::string_view name;
  double value;
};
std::span<const TorchConstant> torch_constants();

// Lists Python's own functions that an expression may call.
std::span<const std::string_view> python_functions();

bool is_allowed(std::string_view name, Place place);
// Returns all names at a place, for "did you mean".
std::vector<std::string> allowed_names(Place place);

// Says why a function is refused, to follow the refusal, "; it draws random numbers; ...", or
// returns "".
std::string reason_for_refusal(std::string_view name);
// Returns true if torch, as far as we know, has something of this name that is no pure tensor
// function.
bool is_known_impure(std::string_view name);

}  // namespace distgrad
