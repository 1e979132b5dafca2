// An expression means what it means in Python: a table of expressions, evaluated here and by the
// torch of DISTGRAD_PYTHON in one process, compared bit by bit with dtype, shape and gradients.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "rank/expression/allow_list.h"
#include "rank/expression/expression.h"
#include "rank/expression/mutants.h"

namespace distgrad {
namespace {

const std::string kTable = DISTGRAD_SOURCE_DIR "/src/rank/expression/testdata/python_equality.txt";

std::vector<std::string> output_lines(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  std::vector<std::string> lines;
  std::string line;
  for (int c; (c = std::fgetc(pipe)) != EOF;) {
    if (c != '\n') {
      line += static_cast<char>(c);
      continue;
    }
    lines.push_back(line);
    line.clear();
  }
  EXPECT_EQ(pclose(pipe), 0) << command;
  return lines;
}

std::vector<std::string> table() {
  std::ifstream file(kTable);
  std::vector<std::string> texts;
  for (std::string line; std::getline(file, line);)
    if (!line.empty() && line[0] != '#') texts.push_back(line);
  return texts;
}

std::string bits(const at::Tensor& tensor) {
  const at::Tensor packed = tensor.detach().contiguous();
  const auto* bytes = static_cast<const unsigned char*>(packed.const_data_ptr());
  std::string text;
  char two[3];
  for (std::size_t i = 0; i < packed.nbytes(); ++i) {
    std::snprintf(two, sizeof two, "%02x", bytes[i]);
    text += two;
  }
  return text;
}

template <typename T>
at::Tensor filled(std::vector<std::int64_t> shape, at::ScalarType type,
                  const std::vector<T>& values) {
  at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(type));
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<T>());
  return tensor;
}

// The names of python_equality.py.
struct Names {
  explicit Names(at::ScalarType dtype) {
    const auto real = [&](std::vector<std::int64_t> shape, const std::vector<double>& values) {
      return filled<double>(std::move(shape), at::kDouble, values).to(dtype);
    };
    x = real({2, 3}, {0.5, -1.25, 2.0, 3.0, 0.75, -0.5}).set_requires_grad(true);
    y = real({3}, {1.5, 0.25, -2.0}).set_requires_grad(true);
    s = real({}, {1.75});
    i = filled<std::int64_t>({3}, at::kLong, {2, 0, 1});
    m = at::empty({2, 3}, at::TensorOptions().dtype(at::kBool));
    const bool mask[] = {true, false, true, false, true, false};
    std::memcpy(m.mutable_data_ptr(), mask, sizeof mask);
    xs.push_back(real({2}, {1, 2}));
    xs.push_back(real({2}, {3, 5}));
    xs.push_back(real({2}, {-1, 0.5}));
  }

  c10::IValue value(const std::string& name) const {
    if (name == "x") return x;
    if (name == "y") return y;
    if (name == "s") return s;
    if (name == "i") return i;
    if (name == "m") return m;
    if (name == "xs") return xs;
    return std::int64_t{name == "rank" ? 1 : 3};
  }

  at::Tensor x, y, s, i, m;
  c10::List<at::Tensor> xs;
};

const Scope kScope = {{"x", NameType::kTensor}, {"y", NameType::kTensor},
                      {"s", NameType::kTensor}, {"i", NameType::kTensor},
                      {"m", NameType::kTensor}, {"xs", NameType::kTensorList},
                      {"rank", NameType::kInt}, {"world_size", NameType::kInt}};

std::string python_shape(const at::Tensor& tensor) {
  std::string text = "[";
  for (std::int64_t size : tensor.sizes())
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

std::string python_dtype(at::ScalarType type) {
  for (const TorchDType& dtype : torch_dtypes())
    if (dtype.scalar_type == c10::toString(type) &&
        dtype.name.find_first_of("0123456789") != std::string::npos)
      return std::string(dtype.name);
  return "bool";
}

std::string evaluated(const std::string& text, DType dtype, at::ScalarType type) {
  const Names names(type);
  try {
    const auto compiled = compile_expression(text, kScope, dtype, NumberResult::kAccept);
    std::vector<c10::IValue> values;
    for (const std::string& name : compiled->names()) values.push_back(names.value(name));
    const at::Tensor value = compiled->evaluate(std::move(values));
    std::string line =
        python_dtype(value.scalar_type()) + " " + python_shape(value) + " " + bits(value);
    if (!value.requires_grad()) return line;
    try {
      value.sum().backward();
    } catch (const c10::Error&) {  // no derivative
      return line + " backward raises";
    }
    for (const auto& [name, leaf] : {std::pair{"x", names.x}, {"y", names.y}})
      line += std::string(" ") + name + ":" + (leaf.grad().defined() ? bits(leaf.grad()) : "none");
    return line;
  } catch (const InvalidExpression& error) {
    return std::string("error ") + error.what();
  }
}

std::vector<std::string> in_python(const std::string& table_file, const std::string& arguments) {
  return output_lines(DISTGRAD_PYTHON " " DISTGRAD_SOURCE_DIR
                                      "/src/rank/expression/testdata/python_equality.py " +
                      table_file + " " + arguments);
}

// Every name that an expression may use, as Python spells it.
std::string allowed_python_names() {
  std::string names;
  const auto add = [&](const std::string& object, std::string_view name) {
    names += " " + object + "." + std::string(name);
  };
  for (const AllowedGroup& group : allowed_groups())
    for (const AllowedFunction& function : group.functions) {
      if (function.places & kFunction) add("torch", function.name);
      if (function.places & kMethod) add("torch.Tensor", function.name);
      if (function.places & kLinalg) add("torch.linalg", function.name);
    }
  for (const FunctionalFunction& function : functional_functions())
    add("torch.nn.functional", function.name);
  for (const AllowedAttribute& attribute : allowed_attributes())
    add("torch.Tensor", attribute.name);
  for (const TorchDType& dtype : torch_dtypes()) add("torch", dtype.name);
  for (const TorchConstant& constant : torch_constants()) add("torch", constant.name);
  return names;
}

struct TestedDType {
  const char* name;
  DType dtype;
  at::ScalarType type;
  bool all;  // every expression of the table has a value in it
};
constexpr TestedDType kTestedDTypes[] = {{"float64", DType::kFloat64, at::kDouble, true},
                                         {"float32", DType::kFloat32, at::kFloat, true},
                                         {"bfloat16", DType::kBFloat16, at::kBFloat16, false},
                                         {"float16", DType::kFloat16, at::kHalf, false}};

// One Python process for all: its start takes seconds.
class ExpressionInPython : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    at::set_num_threads(1);  // as there: the number decides how some sums are split
    texts_ = table();
    std::string dtypes;
    for (const TestedDType& tested : kTestedDTypes)
      dtypes += (dtypes.empty() ? "" : ",") + std::string(tested.name);
    lines_ = in_python(kTable, dtypes + allowed_python_names());
  }

  static void compare(std::size_t which) {
    const TestedDType& tested = kTestedDTypes[which];
    ASSERT_GT(texts_.size(), 450u);
    ASSERT_GE(lines_.size(), texts_.size() * std::size(kTestedDTypes));
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      const std::string& expected = lines_[which * texts_.size() + i];
      const std::string ours = evaluated(texts_[i], tested.dtype, tested.type);
      if (!tested.all && expected == "error") {
        EXPECT_TRUE(ours.starts_with("error")) << texts_[i] << ": " << ours;
        continue;
      }
      EXPECT_NE(expected, "error") << "not Python: " << texts_[i];
      EXPECT_EQ(ours, expected) << texts_[i];
    }
  }

  static std::vector<std::string> texts_;
  static std::vector<std::string> lines_;
};
std::vector<std::string> ExpressionInPython::texts_;
std::vector<std::string> ExpressionInPython::lines_;

TEST_F(ExpressionInPython, IsTheSameInFloat64) { compare(0); }
TEST_F(ExpressionInPython, IsTheSameInFloat32) { compare(1); }
TEST_F(ExpressionInPython, IsTheSameInBFloat16) { compare(2); }
TEST_F(ExpressionInPython, IsTheSameInFloat16) { compare(3); }

TEST_F(ExpressionInPython, HasWhatIsAllowed) {
  const std::size_t results = texts_.size() * std::size(kTestedDTypes);
  ASSERT_GE(lines_.size(), results);
  EXPECT_THAT(std::vector<std::string>(lines_.begin() + results, lines_.end()), testing::IsEmpty());
}

// What is accepted though nobody wrote it means the same, too.
TEST_F(ExpressionInPython, MutantsAgree) {
  const char* const seed = std::getenv("DISTGRAD_TEST_SEED");
  Mutants mutants(table(), seed ? static_cast<unsigned>(std::atoi(seed)) : 1);
  std::vector<std::string> texts, ours;
  std::set<std::string> seen;
  for (int round = 0; round < 4000; ++round) {
    const std::string text = mutants.with_tokens_changed();
    if (!seen.insert(text).second) continue;
    std::string line = evaluated(text, DType::kFloat64, at::kDouble);
    if (line.starts_with("error"))
      continue;  // not part of the language: fewer than in Python, never others
    texts.push_back(text);
    ours.push_back(line);
  }
  EXPECT_GT(texts.size(), 500u);
  const std::string file =
      testing::TempDir() + "expression_mutants_" + std::to_string(getpid()) + ".txt";
  std::ofstream out(file);
  for (const std::string& text : texts) out << text << "\n";
  out.close();
  const std::vector<std::string> expected = in_python(file, "float64");
  std::remove(file.c_str());
  ASSERT_EQ(texts.size(), expected.size());
  for (std::size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(ours[i], expected[i]) << texts[i];
}

}  // namespace
}  // namespace distgrad
