// Damaged frames, headers and notes of ranks: each is a message, or is refused. frame_fuzz.cpp is
// the same with libFuzzer.
#include "base/mutation_test.h"

#include <gtest/gtest.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace distgrad {
namespace {

std::string frame(const std::string& header, std::size_t numbers) {
  const std::uint32_t words[4] = {0x31464744, 0, static_cast<std::uint32_t>(header.size()),
                                  0};  // "DGF1"
  const std::uint64_t bytes = numbers * 8;
  return std::string(reinterpret_cast<const char*>(words), sizeof words) +
         std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + header +
         std::string(bytes, '\1');
}

std::vector<std::string> seeds() {
  const std::string call =
      R"("kind":"broadcast","op":"","dtype":"float32","shape":[3],"sizes_agree":true,"root":1,"step":0,"in_backward":true,
      "place":"a.py:1","group":"0","ranks":[0,1],"is_between_two":false,"number":7)";
  const std::string result = R"({"kind":"result","id":1,"elapsed_ns":5,"output":"x","entered":[{)" +
                             call + R"(}],"loss":1.5,"loss_shape":[],
      "gradients":[{"shape":[2],"at":0},null],"steps":[{"shape":[1,2],"at":0}],"warnings":["w"],"composed":[],"skipped":"",
      "observed":[{"step":"y","operand":{"shape":[2],"at":0},"operand_strides":[1],"cotangent":null,"cotangent_strides":[],"given":null}],
      "shares":[null,null]})";
  const std::string simulation =
      R"({"kind":"simulation","id":2,"elapsed_ns":5,"losses":{"shape":[2],"at":0},"loss_bounds":{"shape":[2],"at":0},
      "steps":[{"step":"y","by_rank":[{"shape":[2],"at":0}],"bound":[{"shape":[2],"at":0}]}],"cotangents":[],
      "gradients":[[{"input":"x","parts":[{"shape":[2],"at":0},null]}]],"bounds":[],"single_gradients":[],"single_bounds":[],"file_truth":[],"leaves":[]})";
  const std::string error =
      R"({"kind":"result","id":1,"elapsed_ns":5,"error":{"kind":"hang","rank":1,"step":"y","message":"m","in_backward":true}})";
  return {result,
          simulation,
          error,
          frame(result, 2),
          frame(simulation, 2) + frame(error, 0),
          R"({"kind":"ready","protocol":1,"torch":"2.15.0"})",
          R"({"kind":"forked","worker":1,"pid":77})",
          R"({"kind":"exited","worker":1,"wait_status":9})",
          R"({"kind":"fork_failed","worker":1,"message":"no"})",
          "{" + call + R"(,"entered":[{"group":"0","calls":7}],"reported_all":true,"recent":[{)" +
              call + "}]}"};
}

TEST(MutatedFrames, AreReadOrRefused) {
  read_mutated(seeds(), 20'000, json_tokens(), [](const std::string& bytes) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  });
}

}  // namespace
}  // namespace distgrad
