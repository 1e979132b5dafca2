// The ranks in Python have the table, too: src/python/distgrad/ranks/collectives/traits.py.
// With DISTGRAD_WRITE_TRAITS=1 in the environment the test writes it.
#include "model/collective_kind.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace distgrad {
namespace {

const std::string kFile = DISTGRAD_SOURCE_DIR "/src/python/distgrad/ranks/collectives/traits.py";
constexpr const char* kTable = "TRAITS = {\n";

const char* python(bool value) { return value ? "True" : "False"; }

std::string row(const CollectiveTraits& t) {
  std::vector<std::string> options;
  for (const auto& [takes, name] : {std::pair(t.takes_op, "op"),
                                    {t.takes_root, "root"},
                                    {t.takes_dim, "dim"},
                                    {t.takes_splits, "splits"},
                                    {t.takes_pairs, "pairs"}})
    if (takes) options.push_back(fmt::format("\"{}\"", name));
  return fmt::format(
      "    \"{}\": Traits(options=({}{}), shape=\"{}\", communicates={},\n"
      "        only_on_root={}, has_async={}),\n",
      t.name, fmt::join(options, ", "), options.size() == 1 ? "," : "",
      kResultShapeNames[static_cast<std::size_t>(t.shape)], python(t.communicates),
      python(t.only_on_root), python(t.has_async));
}

TEST(CollectiveKind, PythonHasTheSameTable) {
  std::ifstream in(kFile);
  std::stringstream text;
  text << in.rdbuf();
  const std::size_t table = text.str().find(kTable);
  ASSERT_NE(table, std::string::npos) << kFile;
  std::string wanted = text.str().substr(0, table) + kTable;
  for (const CollectiveTraits& t : kCollectives) wanted += row(t);
  wanted += "}\n";
  if (std::getenv("DISTGRAD_WRITE_TRAITS"))
    std::ofstream(kFile) << wanted;
  else
    EXPECT_EQ(text.str(), wanted) << "to write it: DISTGRAD_WRITE_TRAITS=1 ctest -R CollectiveKind";
}

}  // namespace
}  // namespace distgrad
