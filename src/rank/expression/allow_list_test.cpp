// docs/expressions.md lists what is allowed, made from the same tables.
#include "rank/expression/allow_list.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace distgrad {
namespace {

const std::string kDocument = DISTGRAD_SOURCE_DIR "/docs/expressions.md";
const std::string kBegin = "<!-- made from src/rank/expression/allow_list.cpp -->\n";
const std::string kEnd = "<!-- end -->\n";

std::string spelt(const AllowedFunction& function) {
  const std::string name(function.name);
  if (function.places & kLinalg) return "`torch.linalg." + name + "`";
  if (function.places == kFunction) return "`torch." + name + "`";
  if (function.places == kMethod) return "`x." + name + "`";
  return "`" + name + "`";
}

template <typename Range, typename Spell>
std::string joined(const Range& range, Spell spell) {
  std::string text;
  for (const auto& each : range) text += (text.empty() ? "" : ", ") + spell(each);
  return text;
}

std::string section() {
  const auto with_prefix = [](std::string prefix) {
    return [prefix](const auto& each) { return "`" + prefix + std::string(each.name) + "`"; };
  };
  std::string text = "| group | allowed |\n| --- | --- |\n";
  for (const AllowedGroup& group : allowed_groups())
    text += "| " + std::string(group.heading) + " | " + joined(group.functions, spelt) + " |\n";
  text += "| torch.nn.functional | " + joined(functional_functions(), with_prefix("")) + " |\n";
  text += "| Attributes | " + joined(allowed_attributes(), with_prefix("x.")) + " |\n";
  text += "| Data types | " + joined(torch_dtypes(), with_prefix("torch.")) + " |\n";
  text += "| Constants | " + joined(torch_constants(), with_prefix("torch.")) + " |\n";
  text += "| Python's own | " +
          joined(python_functions(),
                 [](std::string_view name) { return "`" + std::string(name) + "`"; }) +
          " |\n";
  return text;
}

TEST(AllowList, IsInTheDocumentation) {
  std::ifstream in(kDocument);
  std::stringstream content;
  content << in.rdbuf();
  const std::string text = content.str();
  const std::size_t begin = text.find(kBegin), end = text.find(kEnd);
  ASSERT_NE(begin, std::string::npos) << kDocument;
  ASSERT_NE(end, std::string::npos) << kDocument;
  if (std::getenv("DISTGRAD_UPDATE_DOCS"))
    std::ofstream(kDocument) << text.substr(0, begin) << kBegin << section() << text.substr(end);
  else
    EXPECT_EQ(text.substr(begin + kBegin.size(), end - begin - kBegin.size()), section())
        << "DISTGRAD_UPDATE_DOCS=1 rewrites it";
}

TEST(AllowList, NamesEachFunctionOnce) {
  std::set<std::string> seen;
  for (const AllowedGroup& group : allowed_groups())
    for (const AllowedFunction& function : group.functions)
      EXPECT_TRUE(seen.insert(spelt(function)).second) << function.name;
}

}  // namespace
}  // namespace distgrad
