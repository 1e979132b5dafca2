// main() of every test executable: GoogleTest's, and under each failed test the command that runs
// it again.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>

namespace {

class RerunCommand : public testing::EmptyTestEventListener {
 public:
  explicit RerunCommand(std::string executable) : executable_(std::move(executable)) {}

  void OnTestEnd(const testing::TestInfo& test) override {
    if (!test.result()->Failed()) return;
    std::cout << "Again: " << executable_ << " --gtest_filter='" << test.test_suite_name() << '.'
              << test.name() << "'" << std::endl;
  }

 private:
  std::string executable_;
};

}  // namespace

int main(int argc, char** argv) {
  ::unsetenv("COLUMNS");  // what is printed must not depend on who runs the tests
  testing::InitGoogleTest(&argc, argv);
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  listeners.Append(new RerunCommand(argv[0]));  // GoogleTest owns it
  return RUN_ALL_TESTS();
}
