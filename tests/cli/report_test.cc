// The page of generate --report: what it says, that it is safe and small, and the comparison of modes.
#include "cli/report/report.h"

#include <regex>

#include "cli/report/html.h"
#include "tests/cli/command.h"
#include "tests/cli/xml_check.h"
#include "tests/engine/generate.h"
#include "tests/engine/planted_drafter.h"
#include "tests/model/byte_tokenizer.h"

namespace kdtree::cli {
namespace {

using namespace std::string_literals;
using cli_test::expect_error;
using cli_test::Outcome;
using cli_test::read_file;
using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

Tokenizer byte_tokenizer() {
  return *Tokenizer::parse(byte_tokenizer_json().dump(), "tokenizer.json");
}

// A round that emitted the bytes of `text`.
ReportRound round_of(std::string_view text) {
  ReportRound round;
  round.nodes = 3;
  for (const char c : text)
    round.emitted.push_back(static_cast<uint8_t>(c));
  return round;
}

// What the text of these rounds looks like, without the spans' attributes.
std::string shown(const std::string& first, const std::vector<std::string>& rounds,
                  size_t bytes = std::string::npos) {
  const Tokenizer tokenizer = byte_tokenizer();
  std::vector<ReportRound> kept;
  std::string all = first;
  for (const std::string& round : rounds) {
    kept.push_back(round_of(round));
    all += round;
  }
  std::vector<const ReportRound*> pointers;
  for (const ReportRound& round : kept)
    pointers.push_back(&round);
  const ReportText text{{}, tokenizer.encode(all), std::min(bytes, all.size()), "length"};
  const std::string html = text_html(text, pointers, &tokenizer);
  return std::regex_replace(html, std::regex("<(span|i)[^>]*>"), "<$1>");
}

Arguments generate(const Arguments& more, const std::string& model = golden("q_lora"),
                   const std::string& draft = golden("dflash")) {
  Arguments all = {"generate", "--model", model, "--draft", draft};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

size_t count(const std::string& text, const std::string& part) {
  size_t times = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++times;
  return times;
}

// The page as XML: no doctype, nothing in scripts and styles, void elements closed.
std::string as_xml(std::string page) {
  page = page.substr(page.find("<html"));
  for (const char* name : {"script", "style"}) {
    const std::string end = fmt::format("</{}>", name);
    for (size_t at = page.find(fmt::format("<{}", name)); at != std::string::npos;
         at = page.find(fmt::format("<{}", name), at + 1)) {
      const size_t from = page.find('>', at) + 1;
      page.erase(from, page.find(end, from) - from);
    }
  }
  page = std::regex_replace(page, std::regex(R"(<(meta|input)\b([^>]*)>)"), "<$1$2/>");
  // Long paths are more than the checker looks ahead.
  return std::regex_replace(page, std::regex(R"re( d="[^"]*")re"), "");
}

// What would make a browser ask for something.
void expect_self_contained(const std::string& page) {
  EXPECT_NE(page.find("Content-Security-Policy\" content=\"default-src 'none';"), std::string::npos);
  for (const char* part :
       {"http:", "https:", " src=", "url(", "@import", "<link", "<img", "<iframe", "<object"})
    EXPECT_EQ(page.find(part), std::string::npos) << part;
  EXPECT_EQ(count(page, "href="), count(page, "href=\"#main\""));
}

TEST(Report, TextBelongsToTheRoundThatCompletedIt) {
  EXPECT_EQ(shown("a", {"bc", "d"}), "<span></span>a<span>b<b>c</b></span><span><b>d</b></span>");
  // A character of several bytes, its round; one of nothing but a beginning can still be chosen.
  EXPECT_EQ(shown("a", {"b\xc3", "\xa9z"}), "<span></span>a<span>b</span><span>é<b>z</b></span>");
  EXPECT_EQ(shown("a", {"\xc3", "\xa9z"}), "<span></span>a<span><i></i></span><span>é<b>z</b></span>");
  // Behind a stop string there is nothing.
  EXPECT_EQ(shown("a", {"bcd", "ef"}, 3), "<span></span>a<span>bc</span><span><i></i></span>");
}

TEST(Report, BytesThatAreNoTextAreShown) {
  EXPECT_EQ(shown("", {"<a href='x'>&\"."}),
            "<span></span><span>&lt;a href=&#39;x&#39;&gt;&amp;&quot;<b>.</b></span>");
  EXPECT_EQ(shown("", {"\x1b\xff\n\t\xe2\x80\xae."}),
            "<span></span><span><i>\\x1b</i><i>\\xff</i><i></i>\n<i></i>\t<i>\\u202e</i><b>.</b></span>");
  const Tokenizer tokenizer = byte_tokenizer();
  EXPECT_EQ(token_label(&tokenizer, ' '), "␣");
  EXPECT_EQ(token_label(&tokenizer, '\n'), "↵");
  EXPECT_EQ(token_label(&tokenizer, 0x1b), "\\x1b");
  EXPECT_EQ(token_label(&tokenizer, 0xff), "\\xff");
  EXPECT_EQ(token_label(&tokenizer, 256), "256");
  EXPECT_EQ(token_label(nullptr, 65), "65");
  EXPECT_EQ(escape_html("<\x01\xff"), "&lt;\\x01\uFFFD");
  EXPECT_EQ(json_in_script({"</script><!--"}), "[\"\\u003c/script>\\u003c!--\"]");
}

TEST(Report, NothingInAPageIsMarkupOfATexts) {
  const Tokenizer tokenizer = byte_tokenizer();
  const std::string evil = "</script></style>'\"><script>alert(1)</script><!--\x1b]0;\x07\xff";
  GenerationReport report;
  report.model = evil;
  report.settings = {{evil, evil}};
  report.texts = {{tokenizer.encode(evil), tokenizer.encode("x" + evil), evil.size() + 1, "eos"}};
  report.tokenizer = &tokenizer;
  ReportRun run;
  run.mode = "tree";
  RoundRecorder recorder;
  const auto tokens = tokenizer.encode(evil);
  const Request request;
  for (const int32_t token : tokens) {
    const DraftTree tree{{token, '<'}, {-1, 0}, {0, 1}, {0.0, -1.0}};
    const int32_t path[] = {0};
    recorder.add({0, request, 0, tree, {}, path, std::span(&token, 1)}, 0.001);
    run.stats.add_round(2, 1, 1);
  }
  run.rounds = recorder.take();
  report.runs = {run};
  const std::string page = report_page(report);
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(count(page, "<script"), 3u);  // labels, rounds, the page's own
  EXPECT_EQ(count(page, "</script"), 3u);
  EXPECT_EQ(page.find('\x1b'), std::string::npos);
  EXPECT_EQ(cli_test::xml_problem(as_xml(page)), "");
  expect_self_contained(page);
}

TEST(Report, PageOfThreeModesSaysWhatTheyDid) {
  const TemporaryDirectory folder;
  const Outcome outcome = cli_test::run(
      generate({"--mode", "ar,chain,tree", "--nodes", "8", "--input-ids", "5,17,3,60", "--input-ids", "1,2",
                "--max-new", "16", "--report", folder.file("page.html")}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(folder.entries(), 1u) << "a temporary file is left";
  const std::string page = read_file(folder.file("page.html"));
  EXPECT_EQ(cli_test::xml_problem(as_xml(page)), "");
  expect_self_contained(page);
  for (const char* part :
       {"<html lang=\"en\">", "<title>", "<main", "as fast as plain decoding", "Prompt 1 of 2",
        "Prompt 2 of 2", "4 tokens of prompt, 16 new tokens", "<small>draft chains</small>",
        "Tokens that a round gave", "Acceptance by depth", "compile", "other", ">seed<", ">temperature<",
        ">machine<", ">date<", "kdtree 0.1.0", "<noscript>"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  // The random drafter is hardly ever right: nearly 15 rounds a prompt.
  EXPECT_GT(count(page, "class=\"r h"), 20u);
}

TEST(Report, FiveHundredTokensOf64NodeTreesStaySmall) {
  const CheckpointCopy target("q_lora");
  const CheckpointCopy drafter("dflash");
  for (const CheckpointCopy* copy : {&target, &drafter}) {
    copy->edit("config.json", [](Json& json) {
      json["max_position_embeddings"] = 1024;
      json["eos_token_id"] = nullptr;
    });
  }
  const Outcome outcome = cli_test::run(generate(
      {"--nodes", "64", "--max-new", "500", "--input-ids", "5,17,3", "--report", target.file("page.html")},
      target.path(), drafter.path()));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string page = read_file(target.file("page.html"));
  EXPECT_GE(count(page, "class=\"r h"), 300u) << "a drafter that is right too often";
  EXPECT_LT(page.size(), size_t{2} << 20);
  EXPECT_GT(page.size(), size_t{200} << 10) << "where are the trees?";
  RecordProperty("bytes", static_cast<int>(page.size()));
}

TEST(Report, RoundsOfAnEngineAreKeptWithAsMuchOfTheirTreesAsIsShown) {
  TargetModel target = load_target("q_lora");
  const std::vector<Request> requests = {{{5, 17, 3, 60}, 40, {}}};
  const auto plain = kdtree::generate(target, nullptr, {}, requests);
  ASSERT_TRUE(plain);
  std::vector<int32_t> truth = requests[0].prompt;
  truth.insert(truth.end(), plain->tokens[0].begin(), plain->tokens[0].end());
  PlantedDrafter drafter({truth}, target.config().vocab_size, 7, 0.3);
  auto engine = Engine::create(target, &drafter, {.mode = DecodeMode::tree, .nodes = 600, .kv_slots = 1000},
                               std::nullopt);
  ASSERT_TRUE(engine);
  ASSERT_TRUE(engine->submit(requests[0]));
  RoundRecorder recorder;
  engine->watch([&](const RoundView& round) { recorder.add(round, engine->times().rounds()); });
  while (!engine->idle())
    ASSERT_TRUE(engine->step([](const Emission&) { return true; }));
  const auto rounds = recorder.take();
  ASSERT_EQ(static_cast<int64_t>(rounds.size()), engine->stats().rounds);
  std::vector<int32_t> said = {plain->tokens[0][0]};
  double seconds = 0.0;
  bool far = false;
  for (const ReportRound& round : rounds) {
    said.insert(said.end(), round.emitted.begin(), round.emitted.end());
    EXPECT_GE(round.seconds, seconds);
    seconds = round.seconds;
    EXPECT_TRUE(validate_tree(round.tree.view()));
    EXPECT_LE(round.tree.size(), RoundRecorder::kMostTreeNodes + 1 + 8);
    ASSERT_EQ(round.path.size(), round.emitted.size());
    for (size_t i = 1; i < round.path.size(); ++i) {
      const auto node = static_cast<size_t>(round.path[i]);
      EXPECT_EQ(round.tree.parent[node], round.path[i - 1]);
      EXPECT_EQ(round.tree.token[node], round.emitted[i - 1]);
      far = far || round.path[i] > RoundRecorder::kMostTreeNodes;
    }
  }
  EXPECT_EQ(said, plain->tokens[0]);
  EXPECT_TRUE(far) << "no accepted node was beyond those that are kept anyway";
}

TEST(Report, TreesBeyondThePagesRoomAreNotKept) {
  RoundRecorder recorder;
  const std::vector<int32_t> tokens(1001, 7);
  const auto tree = DraftTree::chain(tokens);
  const Request request;
  const int32_t path[] = {0};
  for (int i = 0; i < 1000; ++i)
    recorder.add({0, request, 0, *tree, {}, path, path}, 0.0);
  const auto rounds = recorder.take();
  EXPECT_EQ(rounds.front().tree.size(), RoundRecorder::kMostTreeNodes + 1);
  EXPECT_EQ(rounds.back().tree.size(), 0);
  EXPECT_EQ(rounds.back().nodes, 1000);
}

TEST(Report, ManyPromptsPlainDecodingAndSingleTokensToo) {
  const TemporaryDirectory folder;
  Arguments arguments = generate({"--mode", "ar", "--max-new", "2", "--report", folder.file("page.html")});
  for (int i = 0; i < 17; ++i)
    arguments.insert(arguments.end(), {"--input-ids", fmt::format("{},2", i + 3)});
  ASSERT_EQ(cli_test::run(arguments).code, 0);
  std::string page = read_file(folder.file("page.html"));
  EXPECT_EQ(cli_test::xml_problem(as_xml(page)), "");
  EXPECT_NE(page.find("The first 16 of 17 prompts are shown"), std::string::npos);
  EXPECT_EQ(count(page, "<section class=\"request\""), 16u);
  EXPECT_EQ(page.find("data-step=\"first\""), std::string::npos) << "no trees, no buttons";

  // A text that the prompt's pass ends has no rounds.
  ASSERT_EQ(cli_test::run(generate({"--input-ids", "5", "--max-new", "1", "--nodes", "4", "--report",
                                    folder.file("page.html")}))
                .code,
            0);
  page = read_file(folder.file("page.html"));
  EXPECT_EQ(cli_test::xml_problem(as_xml(page)), "");
  EXPECT_EQ(page.find("nan"), std::string::npos);
  EXPECT_EQ(page.find(">inf"), std::string::npos);
}

TEST(Report, AFileThatCannotBeWrittenIsToldBeforeAnythingElse) {
  const TemporaryDirectory folder;
  const auto with = [&](const std::string& path) {
    return cli_test::run({"generate", "--model", "nowhere", "--input-ids", "1", "--report", path});
  };
  expect_error(with(folder.file("no/page.html")), 3,
               "--report: " + folder.file("no/page.html") + ": cannot create");
  expect_error(with(folder.path()), 3, "--report: " + folder.path() + ": is no regular file");
  expect_error(with("/dev/null"), 3, "--report: /dev/null: is no regular file");
  expect_error(with(""), 2, "--report: '', expected a file's name");
  // A page that is there stays until the new one is complete.
  std::ofstream(folder.file("page.html")) << "old";
  expect_error(with(folder.file("page.html")), 3, "--model: nowhere");
  EXPECT_EQ(read_file(folder.file("page.html")), "old");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(Report, CtrlCLeavesNoPage) {
  const TemporaryDirectory folder;
  // Forward passes of thousands of rows: it is running when the signal comes.
  const cli_test::RunningCommand command(
      generate({"--mode", "tree,ar", "--nodes", "8000", "--max-new", "120", "--input-ids", "1", "--report",
                folder.file("page.html")}));
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  command.interrupt();
  const Outcome outcome = command.wait();
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(Modes, ThatAreComparedSayTheSameOnce) {
  const Arguments prompts = {"--input-ids", "5,17,3,60", "--input-ids", "1,2",
                             "--max-new",   "12",        "--nodes",     "6"};
  const auto run = [&](Arguments more) {
    more.insert(more.end(), prompts.begin(), prompts.end());
    const Outcome outcome = cli_test::run(generate(more));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome;
  };
  const std::string text = run({"--mode", "ar"}).out;
  const Outcome compared = run({"--mode", "chain,ar,tree"});
  EXPECT_EQ(compared.out, text);
  EXPECT_TRUE(std::regex_search(
      compared.err, std::regex("^chain  24 tokens, .*\nar     24 tokens, .*\ntree   24 tokens, .*\n"
                               "\nmode +passes +accept length +tokens/s +speedup\n"
                               "chain +[0-9]+ +[0-9.]+ +[0-9.]+ +[0-9.]+x\nar .* 1.00x\ntree .*x\n$")))
      << compared.err;
  EXPECT_EQ(run({"--mode", "ar,tree", "--stream"}).out, "=== ar\n" + text + "=== tree\n" + text);

  const Json json = Json::parse(run({"--mode", "ar,chain,tree", "--json", "--temperature", "0.9"}).out);
  EXPECT_EQ(json["baseline"], "ar");
  ASSERT_EQ(json["modes"].size(), 3u);
  EXPECT_EQ(json["modes"][0]["speedup"], 1.0);
  for (const Json& mode : json["modes"]) {
    EXPECT_EQ(mode["requests"][1]["tokens"], json["modes"][0]["requests"][1]["tokens"]);
    EXPECT_GT(mode["tokens_per_s"], 0.0);
  }
  EXPECT_EQ(json["modes"][2]["mode"], "tree");
}

TEST(Modes, ErrorsNameTheOption) {
  expect_error(cli_test::run(generate({"--mode", "ar,ar", "--input-ids", "1"})), 2,
               "--mode: 'ar,ar', expected each once");
  expect_error(cli_test::run(generate({"--mode", "ar,,tree", "--input-ids", "1"})), 2,
               "--mode: '', expected ar|");
  expect_error(cli_test::run(generate({"--mode", "ar,tee", "--input-ids", "1"})), 2, "did you mean 'tree'?");
  // Known before the first mode runs.
  expect_error(
      cli_test::run({"generate", "--model", golden("q_lora"), "--mode", "ar,tree", "--input-ids", "1"}), 2,
      "--mode: 'tree', expected --draft with it");
  Arguments capture = generate({"--mode", "ar,tree", "--input-ids", "1", "--out", "x"});
  capture[0] = "capture";
  expect_error(cli_test::run(capture), 2, "--mode: 'ar,tree', expected ar|chain|tree");
}

TEST(Modes, ADifferenceIsFound) {
  const std::vector<ReportText> texts = {{{1}, {5, 6, 7}, 3, "length"}, {{2}, {8, 9}, 2, "stop"}};
  EXPECT_EQ(difference(texts, "tree", texts, "ar"), "");
  auto others = texts;
  others[0].tokens[2] = 4;
  EXPECT_EQ(difference(texts, "tree", others, "ar"), "prompt 1: token 3 is 7 with tree, 4 with ar");
  others = texts;
  others[0].tokens.push_back(4);
  EXPECT_EQ(difference(texts, "tree", others, "ar"), "prompt 1: 3 tokens with tree, 4 with ar");
  others = texts;
  others[0].finish_reason = "eos";
  EXPECT_EQ(difference(texts, "tree", others, "ar"),
            "prompt 1: ends with 'length' with tree, with 'eos' with ar");
  // Behind a stop string rounds end where they end.
  others = texts;
  others[1].tokens.push_back(1);
  EXPECT_EQ(difference(texts, "tree", others, "ar"), "");
  others[1].bytes = 1;
  EXPECT_NE(difference(texts, "tree", others, "ar"), "");
}

}  // namespace
}  // namespace kdtree::cli
