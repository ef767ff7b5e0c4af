// Checkpoints that are not as they should be: each an error that says what is wrong and where.
#include <gtest/gtest.h>

#include "model/dflash.h"
#include "model/target_model.h"
#include "tests/model/golden.h"

namespace kdtree {
namespace {

using Json = nlohmann::json;

struct BadConfig {
  const char* base;
  std::function<void(Json&)> change;
  int32_t code;
  std::string part;
};

void expect_refused(const CheckpointCopy& copy, int32_t code, const std::string& part) {
  const auto model = TargetModel::load(copy.path());
  ASSERT_FALSE(model) << part;
  EXPECT_EQ(model.error().code, code) << model.error().message;
  EXPECT_NE(model.error().message.find(part), std::string::npos) << model.error().message;
  EXPECT_EQ(model.error().message.rfind(copy.path(), 0), 0u) << model.error().message;
}

TEST(Checkpoint, UnsupportedOrImpossibleConfigurationsNameTheKey) {
  const BadConfig cases[] = {
      {"dense", [](Json& c) { c["architectures"] = {"LlamaForCausalLM"}; }, KDTREE_UNSUPPORTED,
       "config.json: architectures is [\"LlamaForCausalLM\"], expected DeepseekV3ForCausalLM"},
      {"dense", [](Json& c) { c["model_type"] = "llama"; }, KDTREE_UNSUPPORTED, "model_type is \"llama\""},
      {"dense",
       [](Json& c) {
         c["quantization_config"] = {{"quant_method", "fp8"}};
       },
       KDTREE_UNSUPPORTED, "quantization_config is {\"quant_method\":\"fp8\"}, expected none"},
      {"dense", [](Json& c) { c["hidden_act"] = "gelu"; }, KDTREE_UNSUPPORTED, "hidden_act is \"gelu\""},
      {"moe", [](Json& c) { c["scoring_func"] = "softmax"; }, KDTREE_UNSUPPORTED, "scoring_func"},
      {"moe", [](Json& c) { c["topk_method"] = "greedy"; }, KDTREE_UNSUPPORTED, "topk_method"},
      {"moe", [](Json& c) { c["moe_layer_freq"] = 2; }, KDTREE_UNSUPPORTED,
       "moe_layer_freq is 2, expected 1"},
      {"dense", [](Json& c) { c["attention_bias"] = true; }, KDTREE_UNSUPPORTED, "attention_bias is true"},
      {"dense", [](Json& c) { c["kv_lora_rank"] = 40; }, KDTREE_UNSUPPORTED,
       "kv_lora_rank is 40, expected a multiple of 16"},
      {"yarn", [](Json& c) { c["rope_scaling"]["type"] = "linear"; }, KDTREE_UNSUPPORTED,
       "rope_scaling: type is \"linear\", expected \"default\" or \"yarn\""},
      {"yarn", [](Json& c) { c["rope_scaling"]["attn_factor"] = 1.5; }, KDTREE_UNSUPPORTED,
       "rope_scaling: attn_factor is 1.5, expected 1"},
      {"yarn", [](Json& c) { c["rope_scaling"]["extrapolation_factor"] = 0; }, KDTREE_UNSUPPORTED,
       "rope_scaling: extrapolation_factor is 0, expected 1"},
      {"yarn", [](Json& c) { c["rope_scaling"]["partial_rotary_factor"] = 0.5; }, KDTREE_UNSUPPORTED,
       "rope_scaling: partial_rotary_factor is 0.5, expected 1"},
      {"yarn", [](Json& c) { c["rope_scaling"]["truncate"] = "no"; }, KDTREE_INVALID_FILE,
       "rope_scaling: truncate is \"no\", expected true or false"},
      {"yarn", [](Json& c) { c["rope_scaling"].erase("original_max_position_embeddings"); },
       KDTREE_INVALID_FILE, "original_max_position_embeddings is absent"},
      {"yarn", [](Json& c) { c["rope_scaling"]["factor"] = "4"; }, KDTREE_INVALID_FILE, "factor is \"4\""},
      {"dense", [](Json& c) { c.erase("hidden_size"); }, KDTREE_INVALID_FILE, "hidden_size is absent"},
      {"dense", [](Json& c) { c["num_hidden_layers"] = -1; }, KDTREE_INVALID_FILE, "num_hidden_layers is -1"},
      {"dense", [](Json& c) { c["num_attention_heads"] = 1e300; }, KDTREE_INVALID_FILE,
       "num_attention_heads is 1e+300"},
      {"dense", [](Json& c) { c["vocab_size"] = 18446744073709551615u; }, KDTREE_INVALID_FILE, "vocab_size"},
      {"dense",
       [](Json& c) {
         c["eos_token_id"] = {1, 96};
       },
       KDTREE_INVALID_FILE, "eos_token_id is [1,96]"},
      {"dense", [](Json& c) { c["tie_word_embeddings"] = "yes"; }, KDTREE_INVALID_FILE,
       "tie_word_embeddings"},
      {"moe", [](Json& c) { c["n_group"] = 3; }, KDTREE_INVALID_FILE, "n_group is 3, expected a divisor"},
      {"moe", [](Json& c) { c["n_group"] = 8; }, KDTREE_UNSUPPORTED, "n_group is 8"},
      {"moe", [](Json& c) { c["topk_group"] = 5; }, KDTREE_INVALID_FILE, "topk_group is 5"},
      {"moe", [](Json& c) { c["num_experts_per_tok"] = 5; }, KDTREE_INVALID_FILE, "num_experts_per_tok is 5"},
      {"kimi", [](Json& c) { c["text_config"]["hidden_act"] = "gelu"; }, KDTREE_UNSUPPORTED,
       "text_config: hidden_act"},
      {"kimi", [](Json& c) { c["text_config"] = 3; }, KDTREE_INVALID_FILE, "text_config is 3"},
  };
  for (const BadConfig& bad : cases) {
    const CheckpointCopy copy(bad.base);
    copy.edit("config.json", bad.change);
    expect_refused(copy, bad.code, bad.part);
  }
}

TEST(Checkpoint, SizesThatTheWeightsDoNotHaveNameTheTensor) {
  const BadConfig cases[] = {
      {"dense", [](Json& c) { c["vocab_size"] = 97; }, KDTREE_INVALID_FILE,
       "tensor \"model.embed_tokens.weight\" has shape [96, "},
      {"dense", [](Json& c) { c["num_hidden_layers"] = 40; }, KDTREE_INVALID_FILE,
       "is missing, expected one of"},
      {"dense", [](Json& c) { c["v_head_dim"] = 8; }, KDTREE_INVALID_FILE, "kv_b_proj.weight\" has shape"},
      {"q_lora", [](Json& c) { c["q_lora_rank"] = nullptr; }, KDTREE_INVALID_FILE,
       "self_attn.q_proj.weight\" is missing"},
      {"moe", [](Json& c) { c["n_routed_experts"] = 16; }, KDTREE_INVALID_FILE,
       "mlp.gate.weight\" has shape"},
      {"moe", [](Json& c) { c["n_shared_experts"] = 1; }, KDTREE_INVALID_FILE, "shared_experts"},
  };
  for (const BadConfig& bad : cases) {
    const CheckpointCopy copy(bad.base);
    copy.edit("config.json", bad.change);
    expect_refused(copy, bad.code, bad.part);
  }
}

TEST(Checkpoint, FilesThatAreMissingOrCutShort) {
  {
    const CheckpointCopy copy("dense");
    std::filesystem::remove(copy.file("model.safetensors"));
    expect_refused(copy, KDTREE_IO_ERROR, "model.safetensors");
  }
  {
    const CheckpointCopy copy("dense");
    const auto size = std::filesystem::file_size(copy.file("model.safetensors"));
    std::filesystem::resize_file(copy.file("model.safetensors"), size - 1);
    expect_refused(copy, KDTREE_INVALID_FILE, "model.safetensors: ");
  }
  {
    const CheckpointCopy copy("dense");
    std::filesystem::remove(copy.file("config.json"));
    expect_refused(copy, KDTREE_IO_ERROR, "config.json");
  }
  {
    const CheckpointCopy copy("dense");
    std::ofstream(copy.file("config.json")) << "{\"hidden_size\": ";
    expect_refused(copy, KDTREE_INVALID_FILE, "config.json: not JSON");
  }
  {
    const CheckpointCopy copy("dense");
    std::ofstream(copy.file("generation_config.json")) << R"({"eos_token_id": "x"})";
    expect_refused(copy, KDTREE_INVALID_FILE, "generation_config.json: eos_token_id is \"x\"");
  }
}

TEST(Checkpoint, ShardIndexesThatLeadNowhere) {
  const std::string index = "model.safetensors.index.json";
  const auto change_first = [&](const std::string& to) {
    return [to](Json& json) { json["weight_map"].begin().value() = to; };
  };
  const BadConfig cases[] = {
      {"yarn", change_first("missing.safetensors"), KDTREE_IO_ERROR, "missing.safetensors"},
      {"yarn", change_first("../model.safetensors"), KDTREE_INVALID_FILE,
       "expected the name of a file beside it"},
      {"yarn", change_first(""), KDTREE_INVALID_FILE, "expected the name of a file beside it"},
      {"yarn", [](Json& json) { json["weight_map"]["nothing"] = json["weight_map"].begin().value(); },
       KDTREE_INVALID_FILE, "tensor \"nothing\" is not in"},
      {"yarn", [](Json& json) { json.erase("weight_map"); }, KDTREE_INVALID_FILE, "weight_map is absent"},
      {"yarn", [](Json& json) { json["weight_map"]["x"] = 1; }, KDTREE_INVALID_FILE,
       "expected text at \"x\""},
  };
  for (const BadConfig& bad : cases) {
    const CheckpointCopy copy(bad.base);
    copy.edit(index, bad.change);
    expect_refused(copy, bad.code, bad.part);
  }
}

// The published shards of one model may hold leftovers of another.
TEST(Checkpoint, TheIndexSaysWhichShardsTensorCounts) {
  const CheckpointCopy copy("yarn");
  const auto index = nlohmann::json::parse(std::ifstream(copy.file("model.safetensors.index.json")));
  const std::string name = "model.layers.0.input_layernorm.weight";
  const std::string owner = index["weight_map"][name];
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (file == owner) continue;
    const std::string path = copy.file(file);
    auto shard = SafetensorsFile::open(path);
    std::map<std::string, Tensor> tensors;
    for (const auto& [key, view] : shard->tensors())
      tensors[key] = view.to_tensor();
    tensors[name] = Tensor(DType::f16, {48});
    std::map<std::string, const Tensor*> out;
    for (const auto& [key, value] : tensors)
      out[key] = &value;
    ASSERT_TRUE(write_safetensors(path, out, {}));
  }
  auto weights = Weights::open(copy.path());
  ASSERT_TRUE(weights) << weights.error().message;
  auto original = Weights::open(golden("yarn"));
  EXPECT_EQ(*weights->vector(name, 48), *original->vector(name, 48));
}

TEST(Checkpoint, NestingThatNoConfigurationHas) {
  const CheckpointCopy copy("dense");
  std::ofstream(copy.file("config.json"))
      << "{\"x\": " << std::string(300000, '[') << std::string(300000, ']') << "}";
  expect_refused(copy, KDTREE_INVALID_FILE, "config.json: nested more than 32 deep");
}

TEST(Checkpoint, EndOfSequenceTokensComeFromTheGenerationConfiguration) {
  const CheckpointCopy copy("dense");
  copy.edit("config.json", [](Json& json) { json["eos_token_id"] = 5; });
  EXPECT_EQ(read_model_config(copy.path())->eos_tokens, (std::vector<int32_t>{5}));
  std::ofstream(copy.file("generation_config.json")) << R"({"eos_token_id": [7, 8]})";
  EXPECT_EQ(read_model_config(copy.path())->eos_tokens, (std::vector<int32_t>{7, 8}));
  std::ofstream(copy.file("generation_config.json")) << R"({"temperature": 1})";
  EXPECT_EQ(read_model_config(copy.path())->eos_tokens, (std::vector<int32_t>{5}));
}

TEST(Checkpoint, RopeParametersOfNewerConfigurationsMeanTheSame) {
  const CheckpointCopy copy("yarn");
  const auto before = read_model_config(copy.path());
  ASSERT_TRUE(before) << before.error().message;
  copy.edit("config.json", [](Json& json) {
    json["rope_parameters"] = json["rope_scaling"];
    json["rope_parameters"]["rope_type"] = "yarn";
    json["rope_parameters"].erase("type");
    json["rope_parameters"]["rope_theta"] = json["rope_theta"];
    json.erase("rope_scaling");
    json.erase("rope_theta");
  });
  const auto after = read_model_config(copy.path());
  ASSERT_TRUE(after) << after.error().message;
  EXPECT_EQ(after->rope.inverse_frequency, before->rope.inverse_frequency);
  EXPECT_EQ(after->rope.amplitude, before->rope.amplitude);
  EXPECT_EQ(after->attention_scale, before->attention_scale);
}

TEST(DflashCheckpoint, MismatchesWithTheTargetNameTheKey) {
  const auto target = TargetModel::load(golden("q_lora"));
  ASSERT_TRUE(target) << target.error().message;
  const BadConfig cases[] = {
      {"dflash", [](Json& c) { c["vocab_size"] = 95; }, KDTREE_INVALID_FILE,
       "vocab_size is 95, expected the target's 96"},
      {"dflash", [](Json& c) { c["hidden_size"] = 64; }, KDTREE_INVALID_FILE,
       "hidden_size is 64, expected the target's 48"},
      {"dflash", [](Json& c) { c["dflash_config"]["num_target_layers"] = 61; }, KDTREE_INVALID_FILE,
       "dflash_config: num_target_layers is 61, expected the target's"},
      {"dflash",
       [](Json& c) {
         c["dflash_config"]["target_layer_ids"] = {0, 61};
       },
       KDTREE_INVALID_FILE, "target_layer_ids is [0,61]"},
      {"dflash",
       [](Json& c) {
         c["dflash_config"]["target_layer_ids"] = {2, 0};
       },
       KDTREE_INVALID_FILE, "target_layer_ids is [2,0], expected a list of the target's layers, ascending"},
      {"dflash",
       [](Json& c) {
         c["dflash_config"]["target_layer_ids"] = {0, 3};
       },
       KDTREE_INVALID_FILE, "target_layer_ids is [0,3]"},
      {"dflash", [](Json& c) { c["dflash_config"].erase("target_layer_ids"); }, KDTREE_INVALID_FILE,
       "target_layer_ids is absent"},
      {"dflash", [](Json& c) { c["dflash_config"]["mask_token_id"] = 96; }, KDTREE_INVALID_FILE,
       "mask_token_id is 96, expected an integer in 0 .. 95"},
      {"dflash", [](Json& c) { c["dflash_config"]["block_size"] = 1; }, KDTREE_INVALID_FILE,
       "block_size is 1"},
      {"dflash", [](Json& c) { c["dflash_config"]["min_block_size"] = 9; }, KDTREE_INVALID_FILE,
       "min_block_size is 9, expected an integer in 2 .. 8"},
      {"dflash", [](Json& c) { c["dflash_config"]["projector_type"] = "domino"; }, KDTREE_UNSUPPORTED,
       "projector_type is \"domino\", expected no such key"},
      {"dflash",
       [](Json& c) {
         c["layer_types"] = {"full_attention", "sliding_attention"};
       },
       KDTREE_UNSUPPORTED, "layer_types"},
      {"dflash", [](Json& c) { c["architectures"] = {"Qwen3ForCausalLM"}; }, KDTREE_UNSUPPORTED,
       "architectures"},
      {"dflash",
       [](Json& c) {
         c["rope_parameters"] = {{"rope_type", "default"}, {"rope_dim", 8}};
       },
       KDTREE_UNSUPPORTED, "rope_parameters: rope_dim is 8, expected 16"},
      {"dflash",
       [](Json& c) {
         c["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
       },
       KDTREE_UNSUPPORTED, "rope_scaling: rope_type is \"linear\", expected \"default\" or \"yarn\""},
      {"dflash", [](Json& c) { c["num_key_value_heads"] = 3; }, KDTREE_INVALID_FILE,
       "num_key_value_heads is 3"},
      {"dflash", [](Json& c) { c["intermediate_size"] = 7; }, KDTREE_INVALID_FILE,
       "mlp.gate_proj.weight\" has"},
  };
  for (const BadConfig& bad : cases) {
    const CheckpointCopy copy(bad.base);
    copy.edit("config.json", bad.change);
    const auto drafter = DFlashDrafter::load(copy.path(), *target);
    ASSERT_FALSE(drafter) << bad.part;
    EXPECT_EQ(drafter.error().code, bad.code) << drafter.error().message;
    EXPECT_NE(drafter.error().message.find(bad.part), std::string::npos) << drafter.error().message;
  }
}

}  // namespace
}  // namespace kdtree
