// Damaged dumps and reports: nothing but a user's error comes of them. read_fuzz.cpp is the same
// with libFuzzer.
#include "base/mutation_test.h"

#include <gtest/gtest.h>

#include "dumps/sample_dumps.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace distgrad::dumps {
namespace {

std::vector<std::string> seeds() {
  const std::string data = sample::bytes_of({1, 2, 3, 4, 5, 6});
  const std::string metadata =
      R"("__metadata__":{"distgrad.rank":"0","distgrad.world_size":"2","distgrad.meshes":"[{\"axes\":{\"dp\":2},\"ranks\":[0,1]}]",)"
      R"("distgrad.counts":"{\"backwards\":2}","distgrad.groups":"[{\"name\":\"g\",\"ranks\":[0,1]}]",)"
      R"("distgrad.parameters":"{\"w\":{\"shape\":[4,3],\"placements\":{\"dp\":\"Shard(0)\"}}}"})";
  const std::string tensor = R"("w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]})";
  return {
      sample::safetensors_bytes("{" + tensor + "}", data),
      sample::safetensors_bytes("{" + metadata + "," + tensor + "}", data),
      sample::safetensors_bytes(
          R"({"a":{"dtype":"BF16","shape":[6],"data_offsets":[0,12]},"b":{"dtype":"F16","shape":[],"data_offsets":[12,14]},
              "c":{"dtype":"F64","shape":[1],"data_offsets":[14,22]},"d":{"dtype":"F32","shape":[0,7],"data_offsets":[22,22]}})",
          data.substr(0, 22)),
      R"({"w":[[1,2.5],[3,"nan"]],"b":0.1,"c":null,"e":[[],[]]})",
      R"({"rank":1,"world_size":2,"gradients":{"module.w":[1,2],"layers.10.w":[0,0],"layers.9.w":[1e300,-0.0]}})",
      R"({"tool":{"name":"distgrad"},"summary":{"cases":2},"cases":[{"id":"a.json","verdict":"match","as_expected":true},
              {"id":"b.json","verdict":"error","as_expected":false,"error":{"kind":"hang"},"findings":[{"rule":"r","step":"y"}]}]})"};
}

TEST(MutatedDumps, AreReadOrRefused) {
  read_mutated(seeds(), 5'000, json_tokens(), [](const std::string& bytes) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  });
}

}  // namespace
}  // namespace distgrad::dumps
