// Fields that hold a tensor, without any connection: they must do what protobuf's own do. The
// oracle is the same message from protobuf's own generator.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <sluice/base/counters.h>
#include <sluice/grpc/payload_field.h>
#include <sluice/grpc/pieces.h>
#include <sluice/grpc/tensor_message.h>

#include "tests/plugins/grpc/chain_start.pb.h"
#include "tests/plugins/grpc/plain_tensors.pb.h"
#include "tests/plugins/grpc/tensors.pb.h"

namespace sluice::test {
namespace {

using tensors::Batch;

std::string pattern(size_t length, int seed) {
  std::string text(length, '\0');
  for (size_t i = 0; i < length; ++i) text[i] = static_cast<char>(i * 31 + i / 251 + seed);
  return text;
}

// A tensor over a string that the program keeps.
Tensor over(const std::string& text) {
  auto tensor = Tensor::wrap(text.data(), TensorDescriptor::bytes(text.size()), nullptr, nullptr);
  REQUIRE(tensor.ok());
  return *tensor;
}

uint64_t count(const char* name) { return read_counter(name); }

// A stream of pieces as gRPC's reader gives them: one block each, nothing joined.
class Blocks final : public google::protobuf::io::ZeroCopyInputStream {
 public:
  explicit Blocks(const std::vector<grpc::Piece>& pieces) : pieces_(pieces) {
    for (const grpc::Piece& piece : pieces_)
      if (piece.tensor) grpc::SharedRanges::add(&piece.tensor);
  }
  ~Blocks() override {
    for (const grpc::Piece& piece : pieces_)
      if (piece.tensor) grpc::SharedRanges::remove(&piece.tensor);
  }
  bool Next(const void** data, int* size) override {
    if (next_ == pieces_.size()) return false;
    const grpc::Piece& piece = pieces_[next_++];
    *data = piece.tensor ? static_cast<const void*>(piece.tensor.data()) : piece.bytes.data();
    *size = static_cast<int>(piece.length());
    *data = static_cast<const char*>(*data) + back_;
    *size -= static_cast<int>(back_);
    read_ += *size;
    back_ = 0;
    return true;
  }
  void BackUp(int count) override {
    back_ = pieces_[--next_].length() - static_cast<size_t>(count);
    read_ -= count;
  }
  bool Skip(int count) override {
    const void* data;
    int size;
    while (count > 0 && Next(&data, &size)) {
      if (size > count) BackUp(size - count);
      count -= std::min(size, count);
    }
    return count == 0;
  }
  int64_t ByteCount() const override { return read_; }

 private:
  const std::vector<grpc::Piece>& pieces_;
  size_t next_ = 0, back_ = 0;
  int64_t read_ = 0;
};

std::string joined(const std::vector<grpc::Piece>& pieces) {
  std::string all;
  for (const grpc::Piece& piece : pieces) {
    all += piece.bytes;
    if (piece.tensor)
      all.append(reinterpret_cast<const char*>(piece.tensor.data()), piece.tensor.size_bytes());
  }
  return all;
}

struct Filled {
  std::string first = pattern(100'000, 1), more = pattern(50'000, 2), whole = pattern(40'000, 3);
  Batch batch;
  plain::Batch same;

  Filled() {
    batch.set_name("layer");
    same.set_name("layer");
    auto one = Tensor::wrap(first.data(),
                            *TensorDescriptor::compact(std::vector<int64_t>{250, 100}, float32),
                            nullptr, nullptr);
    REQUIRE(grpc::to_message(*one, batch.mutable_first()).ok());
    same.mutable_first()->set_dtype("float32");
    same.mutable_first()->add_shape(250);
    same.mutable_first()->add_shape(100);
    same.mutable_first()->set_payload(first);
    for (int i = 0; i < 3; ++i) {
      REQUIRE(batch.add_more()->set_payload_tensor(over(more)).ok());
      same.add_more()->set_payload(more);
    }
    REQUIRE(batch.set_whole_tensor(over(whole)).ok());
    same.set_whole(whole);
    batch.set_maybe("");
    same.set_maybe("");
    batch.set_never("n");
    same.set_never("n");
    batch.set_last(7);
    same.set_last(7);
  }
};

}  // namespace

TEST_CASE("a message with tensors is encoded as one with strings", "[grpc][payload]") {
  const Filled filled;
  const std::string expected = filled.same.SerializeAsString();
  const uint64_t copied = count("grpc.payloads_copied");
  CHECK((filled.batch.SerializeAsString() == expected));
  CHECK(filled.batch.ByteSizeLong() == expected.size());
  const auto pieces = grpc::take_apart(filled.batch);
  REQUIRE(pieces);
  CHECK((joined(*pieces) == expected));
  // Each tensor is a piece that lies where the program put it.
  std::vector<const void*> places;
  for (const grpc::Piece& piece : *pieces)
    if (piece.tensor) places.push_back(piece.tensor.data());
  CHECK(places == std::vector<const void*>{filled.first.data(), filled.more.data(),
                                           filled.more.data(), filled.more.data(),
                                           filled.whole.data()});
  CHECK(count("grpc.payloads_copied") == copied);
}

TEST_CASE("a message that ends with a tensor has all its pieces", "[grpc][payload]") {
  const std::string text = pattern(20'000, 6);
  v1::Tensor last;
  REQUIRE(last.set_payload_tensor(over(text)).ok());
  const auto pieces = grpc::take_apart(last);
  REQUIRE(pieces);
  CHECK(pieces->size() == 2);
  CHECK((joined(*pieces) == last.SerializeAsString()));
  v1::Tensor came;
  Blocks blocks(*pieces);
  REQUIRE(came.ParseFromZeroCopyStream(&blocks));
  CHECK(came.payload_tensor().data() == reinterpret_cast<const std::byte*>(text.data()));
}

TEST_CASE("a message that arrives in known memory shares it", "[grpc][payload]") {
  const Filled filled;
  const auto pieces = grpc::take_apart(filled.batch);
  REQUIRE(pieces);
  Batch came;
  const uint64_t copied = count("grpc.payloads_copied");
  {
    Blocks blocks(*pieces);
    REQUIRE(came.ParseFromZeroCopyStream(&blocks));
  }
  CHECK(came.first().payload_tensor().data() ==
        reinterpret_cast<const std::byte*>(filled.first.data()));
  CHECK(came.more(2).payload_tensor().data() ==
        reinterpret_cast<const std::byte*>(filled.more.data()));
  CHECK(came.whole_tensor().data() == reinterpret_cast<const std::byte*>(filled.whole.data()));
  CHECK(count("grpc.payloads_copied") == copied);
  CHECK(came.has_maybe());
  CHECK(came.name() == "layer");
  CHECK(came.last() == 7);
  // As strings: one copy each, once.
  CHECK((came.whole() == filled.whole));
  CHECK(&came.whole() == &came.whole());
  CHECK(count("grpc.payloads_copied") == copied + 1);
  CHECK((came.SerializeAsString() == filled.same.SerializeAsString()));

  // The same in one piece of known memory, behind other fields.
  const std::string one = filled.same.SerializeAsString();
  const std::vector<grpc::Piece> single{{.bytes = {}, .tensor = over(one)}};
  Batch again;
  {
    Blocks blocks(single);
    REQUIRE(again.ParseFromZeroCopyStream(&blocks));
  }
  const auto* place = reinterpret_cast<const char*>(again.first().payload_tensor().data());
  CHECK((place > one.data() && place < one.data() + one.size()));
  CHECK((again.SerializeAsString() == one));
  // In memory that nobody announced: strings, as protobuf has them.
  Batch strings;
  REQUIRE(strings.ParseFromString(one));
  CHECK_FALSE(strings.has_whole_tensor());
  CHECK((strings.SerializeAsString() == one));
}

TEST_CASE("copies, merges, swaps and Clear() treat a tensor like a string", "[grpc][payload]") {
  Filled filled;
  const std::string expected = filled.same.SerializeAsString();
  google::protobuf::Arena arena;
  for (google::protobuf::Arena* where : {static_cast<google::protobuf::Arena*>(nullptr), &arena}) {
    auto* other = google::protobuf::Arena::CreateMessage<Batch>(where);
    other->CopyFrom(filled.batch);
    CHECK(other->whole_tensor().data() == filled.batch.whole_tensor().data());
    CHECK((other->SerializeAsString() == expected));
    Batch third(*other);
    CHECK((third.SerializeAsString() == expected));
    other->Clear();
    CHECK(other->ByteSizeLong() == 0);
    CHECK(other->whole().empty());
    CHECK_FALSE(other->has_maybe());
    other->set_whole("x");
    other->Swap(&third);
    CHECK((other->SerializeAsString() == expected));
    CHECK(third.whole() == "x");
    Batch moved(std::move(*other));
    CHECK((moved.SerializeAsString() == expected));
    // Merging sets what the other has, and adds to repeated fields.
    plain::Batch same = filled.same;
    same.MergeFrom(filled.same);
    moved.MergeFrom(filled.batch);
    CHECK((moved.SerializeAsString() == same.SerializeAsString()));
    // A string takes the tensor's place, and the other way round.
    moved.mutable_whole()->push_back('!');
    CHECK((moved.whole() == filled.whole + "!"));
    CHECK_FALSE(moved.has_whole_tensor());
    REQUIRE(moved.set_maybe_tensor(over(filled.more)).ok());
    CHECK(moved.has_maybe());
    std::unique_ptr<std::string> released(moved.release_maybe());
    CHECK((*released == filled.more));
    CHECK_FALSE(moved.has_maybe());
    moved.set_allocated_whole(released.release());
    CHECK((moved.whole() == filled.more));
    REQUIRE(moved.set_whole_tensor(Tensor()).ok());
    CHECK(moved.whole().empty());
    if (where == nullptr) delete other;
  }
}

TEST_CASE("a tensor goes back to its owner with the last message that has it", "[grpc][payload]") {
  int ended = 0;
  const std::string text = pattern(20'000, 4);
  {
    google::protobuf::Arena arena;
    auto tensor = Tensor::wrap(
        text.data(), TensorDescriptor::bytes(text.size()),
        [](void* user) { ++*static_cast<int*>(user); }, &ended);
    REQUIRE(tensor.ok());
    auto* in_arena = google::protobuf::Arena::CreateMessage<Batch>(&arena);
    Batch outside;
    REQUIRE(in_arena->set_whole_tensor(*tensor).ok());
    REQUIRE(outside.add_more()->set_payload_tensor(*tensor).ok());
    *tensor = Tensor();
    outside.Clear();
    CHECK(ended == 0);
    in_arena->clear_whole();
    CHECK(ended == 1);
    auto again = Tensor::wrap(
        text.data(), TensorDescriptor::bytes(text.size()),
        [](void* user) { ++*static_cast<int*>(user); }, &ended);
    REQUIRE(in_arena->set_whole_tensor(*again).ok());
  }
  CHECK(ended == 2);
}

TEST_CASE("whatever the bytes, a message with tensors reads what protobuf reads",
          "[grpc][payload]") {
  const Filled filled;
  const auto whole = grpc::take_apart(filled.batch);
  REQUIRE(whole);
  const auto agree = [](const std::vector<grpc::Piece>& pieces) {
    const std::string text = joined(pieces);
    plain::Batch expected;
    const bool good = expected.ParseFromString(text);
    Batch came;
    bool parsed;
    {
      Blocks blocks(pieces);
      parsed = came.ParseFromZeroCopyStream(&blocks);
    }
    REQUIRE(parsed == good);
    if (good) REQUIRE((came.SerializeAsString() == expected.SerializeAsString()));
    Batch flat;
    REQUIRE(flat.ParseFromString(text) == good);
    return good;
  };
  CHECK(agree(*whole));
  // Fields twice, the last one wins, and in the other order; submessages twice, which merge.
  std::vector<grpc::Piece> twice = *whole;
  twice.insert(twice.end(), whole->rbegin(), whole->rend());
  (void)agree(twice);
  twice = *whole;
  twice.insert(twice.end(), whole->begin(), whole->end());
  CHECK(agree(twice));
  plain::Batch late, early;
  late.set_whole(pattern(17'000, 5));
  early.set_name("behind the tensor");
  CHECK(agree({{.bytes = late.SerializeAsString(), .tensor = {}},
               {.bytes = early.SerializeAsString(), .tensor = {}},
               {.bytes = filled.same.SerializeAsString(), .tensor = {}}}));
  // Cut at any place around each seam.
  const std::string text = joined(*whole);
  size_t seam = 0;
  for (const grpc::Piece& piece : *whole) {
    for (int64_t off = -80; off <= 80; ++off) {
      const int64_t at = static_cast<int64_t>(seam) + off;
      if (at < 0 || at > static_cast<int64_t>(text.size())) continue;
      const std::string cut = text.substr(0, static_cast<size_t>(at));
      if (!cut.empty()) (void)agree({{.bytes = {}, .tensor = over(cut)}});
      std::vector<grpc::Piece> pieces;
      size_t left = static_cast<size_t>(at);
      for (const grpc::Piece& all : *whole) {
        const size_t take = std::min<size_t>(left, all.length());
        if (take == 0) break;
        if (all.tensor) {
          pieces.push_back({.bytes = {}, .tensor = *all.tensor.slice_bytes(0, take)});
        } else {
          pieces.push_back({.bytes = all.bytes.substr(0, take), .tensor = {}});
        }
        left -= take;
      }
      (void)agree(pieces);
    }
    seam += piece.length();
  }
}

TEST_CASE("bytes changed at random are read as protobuf reads them", "[grpc][payload]") {
  const Filled filled;
  const auto whole = grpc::take_apart(filled.batch);
  REQUIRE(whole);
  std::mt19937 random(1);
  int good = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<grpc::Piece> pieces = *whole;
    for (int change = 0; change < 1 + round % 3; ++change) {
      grpc::Piece& piece = pieces[random() % pieces.size()];
      // Lengths are what matters: of tensors, nothing is read.
      if (!piece.tensor) piece.bytes[random() % piece.bytes.size()] = static_cast<char>(random());
    }
    const std::string text = joined(pieces);
    plain::Batch expected;
    const bool parses = expected.ParseFromString(text);
    Batch came;
    Blocks blocks(pieces);
    REQUIRE(came.ParseFromZeroCopyStream(&blocks) == parses);
    if (parses) REQUIRE((came.SerializeAsString() == expected.SerializeAsString()));
    good += parses;
  }
  CHECK(good > 0);
  CHECK(good < 3000);
}

TEST_CASE("a length beyond what came is refused before memory is taken for it", "[grpc][payload]") {
  // Field 4, 2 GiB less a byte of it, then nothing.
  const std::string claim = "\x22\xff\xff\xff\xff\x07" + std::string(100, 'x');
  Batch came;
  CHECK_FALSE(came.ParseFromString(claim));
  const std::vector<grpc::Piece> pieces{{.bytes = {}, .tensor = over(claim)}};
  Blocks blocks(pieces);
  CHECK_FALSE(came.ParseFromZeroCopyStream(&blocks));
}

TEST_CASE("tensors become messages and tensors again, with type and shape", "[grpc][payload]") {
  const Filled filled;
  auto tensor = grpc::tensor_of(filled.batch.first());
  INFO(tensor.status().to_string());
  REQUIRE(tensor.ok());
  CHECK(tensor->descriptor().to_string() == "float32[250,100]");
  CHECK(tensor->data() == reinterpret_cast<const std::byte*>(filled.first.data()));
  // Through DLPack and back, the same memory.
  auto exported = grpc::dlpack_of(filled.batch.first());
  REQUIRE(exported.ok());
  v1::Tensor again;
  REQUIRE(grpc::to_message(std::move(*exported), &again).ok());
  CHECK(again.payload_tensor().data() == tensor->data());
  CHECK(again.dtype() == "float32");
  CHECK(again.shape_size() == 2);
  // At an odd address it is copied.
  const std::string odd = "x" + filled.first;
  auto shifted = over(odd).slice_bytes(1, filled.first.size());
  REQUIRE(again.set_payload_tensor(*shifted).ok());
  const uint64_t copied = count("grpc.payloads_copied");
  auto aligned = grpc::tensor_of(again);
  REQUIRE(aligned.ok());
  CHECK(reinterpret_cast<uintptr_t>(aligned->data()) % 4 == 0);
  CHECK(count("grpc.payloads_copied") > copied);
  // No elements, and one.
  v1::Tensor small;
  small.set_dtype("int64");
  small.add_shape(0);
  CHECK(grpc::tensor_of(small).ok());
  small.clear_shape();
  small.set_payload(std::string(8, '\1'));
  auto one = grpc::tensor_of(small);
  REQUIRE(one.ok());
  CHECK(one->as<int64_t>()[0] == 0x0101010101010101);
  for (const char* name : {"int8x4", "bfloat16", "bool8", "complex64", "uint8"})
    CHECK(grpc::data_type_of(name)->to_string() == name);
}

TEST_CASE("a message of a file that imports others has their messages", "[grpc][payload]") {
  tensors::Start start;
  start.mutable_link()->mutable_end()->set_body("at the end");
  tensors::Start same;
  REQUIRE(same.ParseFromString(start.SerializeAsString()));
  CHECK(same.link().end().body() == "at the end");
}

TEST_CASE("a tensor message names its type as NumPy does", "[grpc][payload]") {
  static const char element[16] = {};
  const std::vector<int64_t> shape = {1};
  const auto float8 = DataType{TypeCode::kFloat8_e4m3fn, 8, 1};
  for (const auto& [type, name] : {std::pair{boolean, "bool"},
                                   {float8, "float8_e4m3fn"},
                                   {float32, "float32"},
                                   {DataType{TypeCode::kComplex, 64, 1}, "complex64"},
                                   {DataType{TypeCode::kInt, 8, 4}, "int8x4"}}) {
    INFO(name);
    auto layout = TensorDescriptor::compact(shape, type);
    REQUIRE(layout.ok());
    auto tensor = Tensor::wrap(element, *layout, nullptr, nullptr);
    REQUIRE(tensor.ok());
    v1::Tensor message;
    REQUIRE(grpc::to_message(*tensor, &message).ok());
    CHECK(message.dtype() == name);
    // A client in Python writes str(array.dtype).
    auto read = grpc::data_type_of(name);
    REQUIRE(read.ok());
    CHECK(*read == type);
  }
}

TEST_CASE("a tensor message that cannot be read says what is in it", "[grpc][payload]") {
  v1::Tensor message;
  message.set_dtype("float33");
  CHECK_THAT(grpc::tensor_of(message).status().to_string(), Catch::Contains("'float33'"));
  message.set_dtype("float32");
  message.add_shape(4);
  message.set_payload(std::string(15, 'x'));
  CHECK_THAT(grpc::tensor_of(message).status().to_string(),
             Catch::Contains("15 bytes") && Catch::Contains("float32[4], which has 16"));
}

TEST_CASE("a tensor message that contradicts itself is refused", "[grpc][payload]") {
  const auto refused = [](const char* dtype, std::vector<int64_t> shape, size_t bytes) {
    v1::Tensor message;
    message.set_dtype(dtype);
    message.mutable_shape()->Assign(shape.begin(), shape.end());
    message.set_payload(std::string(bytes, 'x'));
    return grpc::tensor_of(message).code() == Code::kInvalidArgument;
  };
  CHECK(refused("float33", {4}, 16));
  CHECK(refused("", {4}, 16));
  CHECK(refused("float32x", {4}, 16));
  CHECK(refused("float32x0", {4}, 16));
  CHECK(refused("float32x99999", {4}, 16));
  CHECK(refused("float32", {4}, 15));
  CHECK(refused("float32", {4}, 0));
  CHECK(refused("float32", {-4}, 16));
  CHECK(refused("float32", {int64_t{1} << 62, 8}, 16));
  CHECK(refused("float32", {1, 1, 1, 1, 1, 1, 1, 1, 4}, 16));
  CHECK_FALSE(refused("float32", {2, 2}, 16));
}

TEST_CASE("a tensor with gaps, or too large for protobuf, is refused", "[grpc][payload]") {
  static char memory[64];
  auto gaps =
      TensorDescriptor::strided(std::vector<int64_t>{2, 2}, std::vector<int64_t>{8, 1}, float32, 0);
  REQUIRE(gaps.ok());
  auto tensor = Tensor::wrap(memory, *gaps, nullptr, nullptr);
  REQUIRE(tensor.ok());
  Batch batch;
  CHECK(batch.set_whole_tensor(*tensor).code() == Code::kInvalidArgument);
  // Never read: only its size counts.
  auto huge = Tensor::wrap(memory, TensorDescriptor::bytes(uint64_t{1} << 31), nullptr, nullptr);
  REQUIRE(huge.ok());
  CHECK(batch.set_whole_tensor(*huge).code() == Code::kInvalidArgument);
  CHECK(batch.whole().empty());
}

}  // namespace sluice::test
