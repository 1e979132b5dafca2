#include "dumps/read_dump.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>

#include "base/error.h"
#include "base/folder_test.h"
#include "dumps/dump_file.h"
#include "dumps/sample_dumps.h"

namespace distgrad::dumps {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class ReadDump : public FolderTest {
 protected:
  std::string file(const std::string& name, const std::string& bytes) {
    sample::write(folder_ / name, bytes);
    return (folder_ / name).string();
  }
  Dump read(std::vector<std::string> paths) { return read_dump(paths); }
  // The one line that a user gets; without the path.
  std::string refusal(const std::string& path) {
    try {
      read({path});
    } catch (const UserError& e) {
      const std::string text = e.what();
      EXPECT_EQ(text.find('\n'), std::string::npos) << text;
      EXPECT_THAT(text, HasSubstr(folder_.string()));
      return text;
    }
    return "read";
  }
};

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

std::vector<double> values_of(const DumpTensor& t) {
  std::vector<double> values(static_cast<std::size_t>(t.size()));
  read_elements(t, 0, t.size(), values.data());
  return values;
}

const DumpTensor& only(const Dump& dump) {
  return *dump.ranks.at(0).gradients.begin()->second.tensor;
}

TEST_F(ReadDump, SafetensorsOfEveryDtype) {
  struct Row {
    std::string dtype, bytes;
    double value;
  };
  const std::vector<Row> rows = {{"F64", std::string("\0\0\0\0\0\0\xf8\xbf", 8), -1.5},
                                 {"F32", std::string("\0\0\xc0\xbf", 4), -1.5},
                                 {"F16", std::string("\0\xbe", 2), -1.5},
                                 {"F16", std::string("\x01\0", 2), std::ldexp(1.0, -24)},
                                 {"F16", std::string("\0\x7c", 2), HUGE_VAL},
                                 {"BF16", std::string("\xc0\xbf", 2), -1.5}};
  for (const Row& row : rows) {
    const std::string header =
        fmt::format(R"({{"w":{{"dtype":"{}","shape":[1],"data_offsets":[0,{}]}}}})", row.dtype,
                    row.bytes.size());
    const Dump dump = read({file("a.safetensors", sample::safetensors_bytes(header, row.bytes))});
    EXPECT_THAT(values_of(only(dump)), ElementsAre(row.value)) << row.dtype;
  }
}

TEST_F(ReadDump, MalformedSafetensorsAreOneLine) {
  const std::string good = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::string data(8, '\0');
  const auto entry = [&](const std::string& rest) {
    return sample::safetensors_bytes(R"({"w":)" + rest + "}", data);
  };
  const std::string huge_length("\x00\xca\x9a\x3b\x00\x00\x00\x00", 8);  // 1,000,000,000
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"", "0 bytes long"},
      {"1234567", "7 bytes long"},
      {entry(R"({"dtype":"F32","shape":[1)" + repeated(",1", 64) + R"(],"data_offsets":[0,4]})"),
       "w has 65 dimensions, more than 64"},
      {huge_length, "says that its header has 1000000000 bytes"},
      {std::string(8, '\xff'), "says that its header has 18446744073709551615 bytes"},
      {sample::safetensors_bytes(good, "").substr(0, 20),
       "truncated: its header should have 54 bytes, 12 are there"},
      {sample::safetensors_bytes(good, data.substr(1)), "lies at bytes 0 to 8, but there are 7"},
      {sample::safetensors_bytes(good, data + "x"), "bytes 8 to 9 belong to no tensor"},
      {sample::safetensors_bytes("{\"w\":", data), "header: not JSON"},
      {sample::safetensors_bytes("[]", data), "header: not an object"},
      {sample::safetensors_bytes(std::string(5000, '['), data), "nested deeper than 64"},
      {sample::safetensors_bytes("\xff\xfe", data), "header: not JSON"},
      {sample::safetensors_bytes(
           R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
           data),
       "\"w\" is there twice"},
      {sample::safetensors_bytes(
           R"({"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
           data),
       "w overlaps another tensor"},
      {sample::safetensors_bytes(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", data),
       "bytes 0 to 4 belong to no tensor"},
      {entry("1"), "needs dtype, shape and two data_offsets"},
      {entry(R"({"dtype":"F32","shape":[2]})"), "needs dtype, shape and two data_offsets"},
      {entry(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), "lies at bytes 8 to 0"},
      {entry(R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})"), "-8 is no size or offset"},
      {entry(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), "2.0 is no size or offset"},
      {entry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
       "has 8 bytes, its shape and dtype make 12"},
      {entry(R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]})"),
       "a shape that nothing can have"},
      {entry(R"({"dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0]})"),
       "a shape that nothing can have"},
      {entry(R"({"dtype":"I64","shape":[1],"data_offsets":[0,8]})"),
       "w is I64; gradients are F64, F32, F16 or BF16"},
      {entry(R"({"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]})"), "w is F8_E4M3"},
      {sample::safetensors_bytes(R"({"__metadata__":{"distgrad.rank":"x"}})", ""),
       "distgrad.rank: not JSON"},
      {sample::safetensors_bytes(R"({"__metadata__":{"distgrad.rank":"-1"}})", ""),
       "rank is not a number from 0"},
      {sample::safetensors_bytes(R"({"__metadata__":{"distgrad.format":"2"}})", ""),
       "a later version of distgrad"},
      {sample::safetensors_bytes("{}", ""), "no gradient in it"},
  };
  for (const auto& [bytes, message] : rows)
    EXPECT_THAT(refusal(file("a.safetensors", bytes)), HasSubstr(message));
}

TEST_F(ReadDump, PlacementsMustFitThePiece) {
  const auto with = [&](const std::string& placements,
                        const std::string& meshes = R"([{\"axes\":{\"tp\":2},\"ranks\":[0,1]}])") {
    const std::string header =
        R"({"__metadata__":{"distgrad.rank":"0","distgrad.meshes":")" + meshes +
        R"(","distgrad.parameters":"{\"w\":{\"shape\":[4],\"placements\":)" + placements +
        R"(}}"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    return refusal(file("a.safetensors", sample::safetensors_bytes(header, std::string(8, '\0'))));
  };
  EXPECT_EQ(with(R"({\"tp\":\"Shard(0)\"})"), "read");
  EXPECT_THAT(with(R"({\"tp\":\"Replicate\"})"),
              HasSubstr("w has shape [2], its placements make [4]"));
  EXPECT_THAT(with(R"({\"tp\":\"Shard(1)\"})"), HasSubstr("dimension 1, which it does not have"));
  EXPECT_THAT(with(R"({\"tp\":\"Cut\"})"), HasSubstr("\"Cut\" is no placement"));
  EXPECT_THAT(with(R"({\"dp\":\"Shard(0)\"})"), HasSubstr("no placement along tp"));
  EXPECT_THAT(with(R"({\"tp\":\"_StridedShard(dim=0, sf=3)\"})"),
              HasSubstr("cannot be understood"));
  EXPECT_THAT(with(R"({\"tp\":\"Shard(0)\"})", R"([{\"axes\":{\"tp\":2},\"ranks\":[1,2]}])"),
              HasSubstr("rank 0 is not on the mesh"));
  EXPECT_THAT(with(R"({\"tp\":\"Shard(0)\"})", R"([{\"axes\":{\"tp\":2},\"ranks\":[0,0]}])"),
              HasSubstr("each once"));
  EXPECT_THAT(with(R"({\"tp\":\"Shard(0)\"})",
                   R"([{\"axes\":{\"tp\":1000000,\"dp\":1000000},\"ranks\":[0]}])"),
              HasSubstr("a mesh of more than"));
}

TEST_F(ReadDump, TheWorldsMeshMayStandAlone) {
  const auto with = [&](const std::string& mesh, const std::string& size = "6") {
    const std::string header = R"({"__metadata__":{"distgrad.rank":"0","distgrad.world_size":")" +
                               size + R"(","distgrad.mesh":")" + mesh +
                               R"("},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    return file("a.safetensors", sample::safetensors_bytes(header, std::string(8, '\0')));
  };
  const Dump dump = read({with(R"({\"dp\":3,\"tp\":2})")});
  ASSERT_EQ(dump.ranks.at(0).meshes.size(), 1U);
  EXPECT_EQ(dump.ranks[0].meshes[0].axes[1].name, "tp");
  EXPECT_THAT(dump.ranks[0].meshes[0].ranks, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_TRUE(read({with("{}")}).ranks[0].meshes.empty());
  EXPECT_THAT(refusal(with(R"({\"dp\":3,\"tp\":2})", "4")),
              HasSubstr("a mesh of 6 ranks, and world_size 4"));
  EXPECT_THAT(refusal(with("[2]")), HasSubstr("mesh is not an object"));
  EXPECT_THAT(refusal(with(R"({\"dp\":0})")), HasSubstr("the size of an axis is not"));
}

// Any byte of a good file changed, or its end cut off: read or refused, never worse (under
// sanitizers).
TEST_F(ReadDump, NoBrokenFileDoesHarm) {
  const std::string header =
      R"({"__metadata__":{"distgrad.rank":"1","distgrad.world_size":"2","distgrad.meshes":"[{\"axes\":{\"tp\":2},\"ranks\":[0,1]}]",)"
      R"("distgrad.parameters":"{\"w\":{\"shape\":[2,2],\"mesh\":0,\"placements\":{\"tp\":\"Shard(1)\"}}}"},)"
      R"("w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})";
  const std::string good = sample::safetensors_bytes(header, std::string(8, '\x3f'));
  ASSERT_EQ(refusal(file("a.safetensors", good)), "read");
  int refused = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    refused += refusal(file("a.safetensors", good.substr(0, at))) != "read" ? 1 : 0;
    for (const char c : {'\0', '9', '-', '"', '[', '}', '\xff'}) {
      std::string broken = good;
      broken[at] = c;
      refusal(file("a.safetensors", broken));
    }
  }
  EXPECT_EQ(refused, static_cast<int>(good.size()));
}

TEST_F(ReadDump, JsonOfBothForms) {
  const Dump plain =
      read({file("a.json", R"({"w": [[1, 2], [3, "nan"]], "b": 0.1, "c": null, "e": [[], []]})")});
  const auto& gradients = plain.ranks.at(0).gradients;
  EXPECT_EQ(plain.ranks[0].rank, kWhole);
  EXPECT_THAT(gradients.at("w").tensor->shape, ElementsAre(2, 2));
  EXPECT_TRUE(std::isnan(values_of(*gradients.at("w").tensor)[3]));
  EXPECT_EQ(gradients.at("w").tensor->dtype, DType::kFloat32);
  EXPECT_EQ(gradients.at("b").tensor->dtype, DType::kFloat64);  // 0.1 is no float32
  EXPECT_THAT(gradients.at("b").tensor->shape, ElementsAre());
  EXPECT_FALSE(gradients.at("c").tensor.has_value());
  EXPECT_THAT(gradients.at("e").tensor->shape, ElementsAre(2, 0));
  EXPECT_EQ(read({file("b.json", R"({"rank": 3, "gradients": {"w": [1]}})")}).ranks.at(0).rank, 3);
}

TEST_F(ReadDump, MalformedJsonIsOneLine) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"", "not JSON"},
      {"[1]", "not an object of gradients"},
      {R"({"tool": {}, "cases": []})", "a report of cases, which has no gradients"},
      {R"({"w": [[1], [1, 2]]})", "w: its rows are not equally long"},
      {R"({"w": [[1], 2]})", "w: its rows are not equally long"},
      {R"({"w": [1, [2]]})", "w: its rows are not equally long"},
      {R"({"w": [[], [[]]]})", "w: its rows are not equally long"},
      {R"({"w": ["x"]})", "w: \"x\" is no number"},
      {R"({"w": true})", "w: true is no number"},
      {R"({"w": 1, "w": 2})", "\"w\" is there twice"},
      {R"({"w": )" + std::string(100'000, '[') + "}", "nested deeper than 64"},
      {R"({")" + std::string(4097, 'w') + R"(": 1})", "a name of 4097 bytes, more than 4096"},
      {R"({"rank": -1, "gradients": {"w": 1}})", "rank is not a number"},
  };
  for (const auto& [text, message] : rows)
    EXPECT_THAT(refusal(file("a.json", text)), HasSubstr(message)) << text;
}

// So many that a reader which looks each name up among all before it would not end.
TEST_F(ReadDump, OfManyParametersTheOrderIsKeptAndATwinIsFound) {
  constexpr int kMany = 150'000;
  std::string text = "{";
  for (int i = kMany; i > 0; --i)
    text += "\"p" + std::to_string(i) + "\": " + std::to_string(i) + ", ";
  const Dump dump = read({file("a.json", text + "\"last\": 0}")});
  const auto& gradients = dump.ranks.at(0).gradients;
  EXPECT_EQ(gradients.size(), kMany + 1);
  EXPECT_EQ(gradients.at("p150000").position, 0);
  EXPECT_EQ(gradients.at("p1").position, kMany - 1);
  EXPECT_THAT(values_of(*gradients.at("p77777").tensor), ElementsAre(77777));
  EXPECT_EQ(gradients.at("last").position, kMany);
  EXPECT_THAT(refusal(file("b.json", text + "\"p149990\": 0}")),
              HasSubstr("\"p149990\" is there twice"));
}

TEST_F(ReadDump, RanksComeFromNames) {
  const auto ranks_in = [&](const std::vector<std::string>& names) {
    fs::remove_all(folder_);
    fs::create_directory(folder_);
    for (const std::string& name : names) file(name, R"({"w": 1})");
    std::vector<int> ranks;
    for (const RankDump& r : read({folder_.string()}).ranks) ranks.push_back(r.rank);
    return ranks;
  };
  EXPECT_THAT(ranks_in({"grads_rank3.json", "grads_rank11.json"}), ElementsAre(3, 11));
  EXPECT_THAT(ranks_in({"rank_0_step7.json", "rank_1_step7.json"}), ElementsAre(0, 1));
  EXPECT_THAT(ranks_in({"0.json", "1.json", "2.json"}), ElementsAre(0, 1, 2));
  EXPECT_THAT(ranks_in({"step100_0.json", "step100_1.json"}), ElementsAre(0, 1));
  EXPECT_THAT(ranks_in({"reference_v2.json"}), ElementsAre(kWhole));
  EXPECT_THROW(ranks_in({"rank_0_step1.json", "rank_0_step2.json"}), UserError);
  EXPECT_THROW(ranks_in({"a.json", "b.json"}), UserError);
  EXPECT_THROW(ranks_in({"a.json", "rank1.json"}), UserError);
  EXPECT_THROW(ranks_in({"readme.txt"}), UserError);
}

TEST_F(ReadDump, PartsOfOneWholeArePutTogether) {
  file("model-00001-of-00002.json", R"({"a": 1})");
  file("model-00002-of-00002.json", R"({"b": 2})");
  const Dump dump = read({folder_.string()});
  ASSERT_EQ(dump.ranks.size(), 1u);
  EXPECT_EQ(dump.ranks[0].gradients.size(), 2u);
  file("model-00003-of-00002.json", R"({"b": 2})");
  EXPECT_THAT(refusal(folder_.string()), HasSubstr("both have b"));
}

TEST_F(ReadDump, AMisspeltPathIsMetWithTheOneMeant) {
  file("reference.json", "{}");
  EXPECT_THAT(refusal((folder_ / "referense.json").string()),
              HasSubstr("did you mean \"reference.json\"?"));
}

TEST(PlainName, LeavesOutWhatWrappersPutIn) {
  EXPECT_EQ(plain_name("module._orig_mod.layers.0._fsdp_wrapped_module.w"), "layers.0.w");
  EXPECT_EQ(plain_name("module"), "module");
  EXPECT_EQ(plain_name("my_module.w"), "my_module.w");
}

}  // namespace
}  // namespace distgrad::dumps
