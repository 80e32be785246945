// protoc-gen-sluice: generates a .proto file's C++ classes in place of --cpp_out, with `bytes`
// fields that can hold a sluice::Tensor (payload_field.h). --grpc_out is used as ever.
//
//   protoc -I. --sluice_out=DIR FILE.proto               fields with [(sluice.v1.shared) = true]
//   protoc -I. --sluice_out=all_bytes:DIR FILE.proto     all `bytes` fields, but repeated and oneof
//
// protobuf's own generator writes the code; then the storage of those fields is exchanged. Each
// exchange must be found where protobuf 3.21 has it: if one is not, no file is written.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <google/protobuf/compiler/code_generator.h>
#include <google/protobuf/compiler/cpp/generator.h>
#include <google/protobuf/compiler/cpp/names.h>
#include <google/protobuf/compiler/plugin.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "sluice/options.pb.h"

namespace {

namespace pb = google::protobuf;
namespace cpp = google::protobuf::compiler::cpp;

// Keeps what a generator writes.
class Captured final : public pb::compiler::GeneratorContext {
 public:
  explicit Captured(pb::compiler::GeneratorContext* outer) : outer_(outer) {}
  pb::io::ZeroCopyOutputStream* Open(const std::string& name) override {
    return new pb::io::StringOutputStream(&files[name]);
  }
  void ListParsedFiles(std::vector<const pb::FileDescriptor*>* parsed) override {
    outer_->ListParsedFiles(parsed);
  }
  std::map<std::string, std::string> files;

 private:
  pb::compiler::GeneratorContext* outer_;
};

// One field in the generated code.
struct Names {
  std::string type, field, full, has_bits;
  int number;
  bool presence;
  bool first;  // of its message
};

// A part of generated code, from a line to another.
class Part {
 public:
  // Of which nothing is changed outside [from, to); failed() if there is no such part.
  Part(std::string& text, const std::string& from, const std::string& to) : text_(text) {
    begin_ = text.find(from);
    end_ = begin_ == std::string::npos ? begin_ : text.find(to, begin_ + from.size());
    if (end_ == std::string::npos) failed_ = from;
  }
  // Exchanges each `old`, of which there must be one.
  void exchange(const std::string& old, const std::string& by) {
    if (!failed_.empty()) return;
    size_t at = text_.find(old, begin_);
    if (at == std::string::npos || at >= end_) {
      failed_ = old;
      return;
    }
    for (; at != std::string::npos && at < end_; at = text_.find(old, at + by.size())) {
      text_.replace(at, old.size(), by);
      end_ += by.size() - old.size();
    }
  }
  // What was sought and is not there.
  const std::string& failed() const { return failed_; }

 private:
  std::string& text_;
  size_t begin_ = 0, end_ = 0;
  std::string failed_;
};

const char kText[] = "::PROTOBUF_NAMESPACE_ID::internal::ArenaStringPtr";
const char kField[] = "::sluice::grpc::PayloadField";

std::string accessors(const Names& names) {
  const std::string& field = names.field;
  return "  // The field as a tensor of bytes: <sluice/grpc/payload_field.h>.\n"
         "  ::sluice::Tensor " +
         field + "_tensor() const { return _impl_." + field +
         "_.tensor(); }\n  [[nodiscard]] ::sluice::Status set_" + field +
         "_tensor(const ::sluice::Tensor& tensor) {\n"
         "    ::sluice::Status set = _impl_." +
         field + "_.set_tensor(tensor, GetArenaForAllocation());\n" +
         (names.presence ? "    if (set.ok())" + names.has_bits + "\n" : "") +
         "    return set;\n  }\n"
         "  // True while no string of it was made or set.\n"
         "  bool has_" +
         field + "_tensor() const { return _impl_." + field + "_.has_tensor(); }\n";
}

// Errors: the text that was not found.
std::string change_header(std::string& header, Names& names) {
  const std::string& field = names.field;
  const std::string internal = "_internal_" + field;
  const std::string scope = names.type + "::";
  if (names.presence) {
    const std::string before =
        "inline std::string* " + scope + "_internal_mutable_" + field + "() {\n";
    const size_t at = header.find(before);
    if (at == std::string::npos) return before;
    const size_t line = at + before.size();
    names.has_bits = header.substr(line + 1, header.find('\n', line) - line - 1);
    if (names.has_bits.find("_has_bits_") == std::string::npos) return "_has_bits_ in " + before;
  }
  Part type(header, "class " + names.type + " final :", "friend struct ::TableStruct_");
  type.exchange(std::string(kText) + " " + field + "_;", std::string(kField) + " " + field + "_;");
  type.exchange("  const std::string& " + internal + "() const;",
                "  const " + std::string(kField) + "& " + internal + "() const;");
  type.exchange("_internal_set_" + field + "(const std::string& value);",
                "_internal_set_" + field + "(const " + kField + "& value);");
  const std::string place =
      "  // @@protoc_insertion_point(class_scope:" + names.full.substr(0, names.full.rfind('.')) +
      ")\n";
  type.exchange(place, accessors(names) + place);
  // Between Arenas, protobuf swaps field by field by reflection, which knows strings alone.
  if (names.first) {
    type.exchange("::PROTOBUF_NAMESPACE_ID::internal::GenericSwap(this, other);",
                  names.type +
                      " kept(*this);\n      CopyFrom(*other);\n      "
                      "other->CopyFrom(kept);");
  }
  if (!type.failed().empty()) return type.failed();
  Part code(header, "#ifdef __GNUC__\n  #pragma GCC diagnostic push",
            "@@protoc_insertion_point(global_scope)");
  code.exchange("inline const std::string& " + scope + internal + "() const {\n  return _impl_." +
                    field + "_.Get();",
                "inline const " + std::string(kField) + "& " + scope + internal +
                    "() const {\n  return _impl_." + field + "_;");
  code.exchange(
      "  // @@protoc_insertion_point(field_get:" + names.full + ")\n  return " + internal + "();",
      "  // @@protoc_insertion_point(field_get:" + names.full + ")\n  return " + internal +
          "().Get();");
  code.exchange(
      "inline void " + scope + "_internal_set_" + field + "(const std::string& value)",
      "inline void " + scope + "_internal_set_" + field + "(const " + kField + "& value)");
  return code.failed();
}

std::string change_source(std::string& source, const Names& names) {
  const std::string& field = names.field;
  const std::string get = "this->_internal_" + field + "()";
  Part type(source, "class " + names.type + "::_Internal {",
            "::PROTOBUF_NAMESPACE_ID::Metadata " + names.type + "::GetMetadata()");
  type.exchange(
      "auto str = _internal_mutable_" + field +
          "();\n          ptr = ::_pbi::InlineGreedyStringParser(str, ptr, ctx);",
      (names.presence ? "_Internal::set_has_" + field + "(&_impl_._has_bits_);\n          "
                      : std::string()) +
          "ptr = _impl_." + field + "_.Parse(ptr, ctx, GetArenaForAllocation());");
  const std::string number = std::to_string(names.number);
  type.exchange("stream->WriteBytesMaybeAliased(\n        " + number + ", " + get + ", target)",
                get + ".Write(" + number + ", target, stream)");
  type.exchange(
      "::PROTOBUF_NAMESPACE_ID::internal::WireFormatLite::BytesSize(\n        " + get + ")",
      get + ".EncodedSize()");
  type.exchange(std::string(kText) + "::InternalSwap(\n      &_impl_." + field + "_,",
                std::string(kField) + "::InternalSwap(\n      &_impl_." + field + "_,");
  return type.failed();
}

bool is_shared(const pb::FieldDescriptor& field, bool all) {
  if (field.type() != pb::FieldDescriptor::TYPE_BYTES) return false;
  if (field.options().HasExtension(sluice::v1::shared))
    return field.options().GetExtension(sluice::v1::shared);
  return all && !field.is_repeated() && field.real_containing_oneof() == nullptr &&
         !field.has_default_value();
}

// Why the field cannot be changed; empty: it can.
std::string flaw_of(const pb::FieldDescriptor& field) {
  const char* other = "put the bytes into a message of their own, such as sluice.v1.Tensor";
  if (field.is_repeated()) return std::string("it is repeated: ") + other;
  if (field.real_containing_oneof() != nullptr) return std::string("it is in a oneof: ") + other;
  if (field.is_extension()) return std::string("it is an extension: ") + other;
  if (field.has_default_value()) return "it has a default value";
  if (field.file()->options().optimize_for() != pb::FileOptions::SPEED)
    return "the file has optimize_for other than SPEED";
  if (field.containing_type()->FindFieldByName(field.name() + "_tensor") != nullptr)
    return "its message has a field " + field.name() + "_tensor, which is the accessor's name";
  return "";
}

void fields_of(const pb::Descriptor& message, bool all,
               std::vector<const pb::FieldDescriptor*>& found, std::string& wrong) {
  if (message.options().map_entry()) return;  // no class of its own
  for (int i = 0; i < message.field_count(); ++i) {
    const pb::FieldDescriptor& field = *message.field(i);
    if (field.options().GetExtension(sluice::v1::shared) &&
        field.type() != pb::FieldDescriptor::TYPE_BYTES)
      wrong = field.full_name() + ": (sluice.v1.shared) is for bytes fields";
    if (is_shared(field, all)) found.push_back(&field);
  }
  for (int i = 0; i < message.extension_count(); ++i)
    if (is_shared(*message.extension(i), false)) found.push_back(message.extension(i));
  for (int i = 0; i < message.nested_type_count(); ++i)
    fields_of(*message.nested_type(i), all, found, wrong);
}

class SluiceGenerator final : public pb::compiler::CodeGenerator {
 public:
  uint64_t GetSupportedFeatures() const override { return FEATURE_PROTO3_OPTIONAL; }

  bool Generate(const pb::FileDescriptor* file, const std::string& parameters,
                pb::compiler::GeneratorContext* context, std::string* error) const override {
    bool all = false;
    std::string others;
    std::vector<std::pair<std::string, std::string>> parsed;
    pb::compiler::ParseGeneratorParameter(parameters, &parsed);
    for (const auto& [key, value] : parsed) {
      if (key == "all_bytes") {
        all = true;
      } else {
        others += (others.empty() ? "" : ",") + key + (value.empty() ? "" : "=" + value);
      }
    }
    std::vector<const pb::FieldDescriptor*> fields;
    for (int i = 0; i < file->message_type_count(); ++i)
      fields_of(*file->message_type(i), all, fields, *error);
    for (int i = 0; i < file->extension_count(); ++i)
      if (is_shared(*file->extension(i), false)) fields.push_back(file->extension(i));
    if (!error->empty()) return false;
    Captured code(context);
    if (!cpp::CppGenerator().Generate(file, others, &code, error)) return false;
    const pb::Descriptor* changed = nullptr;
    for (const pb::FieldDescriptor* field : fields) {
      const bool first = field->containing_type() != changed;
      changed = field->containing_type();
      const std::string flaw = flaw_of(*field);
      if (!flaw.empty()) {
        *error = field->full_name() + " cannot hold a tensor: " + flaw;
        return false;
      }
      const std::string missing = change(*field, first, code.files);
      if (missing.empty()) continue;
      *error =
          field->full_name() + ": protobuf " + std::to_string(GOOGLE_PROTOBUF_VERSION) +
          " generates other code than 3.21, which protoc-gen-sluice knows; not found: " + missing;
      return false;
    }
    for (auto& [name, text] : code.files) {
      const std::string place = "// @@protoc_insertion_point(includes)\n";
      if (!fields.empty() && name.ends_with(".pb.h"))
        text.replace(
            text.find(place), 0,
            "#include <sluice/grpc/payload_field.h>\n#include <sluice/grpc/serialize.h>\n");
      std::unique_ptr<pb::io::ZeroCopyOutputStream> out(context->Open(name));
      pb::io::CodedOutputStream(out.get()).WriteString(text);
    }
    return true;
  }

 private:
  static std::string change(const pb::FieldDescriptor& field, bool first,
                            std::map<std::string, std::string>& files) {
    Names names{.type = cpp::ClassName(field.containing_type()),
                .field = cpp::FieldName(&field),
                .full = field.full_name(),
                .has_bits = "",
                .number = field.number(),
                .presence = field.has_presence(),
                .first = first};
    std::string missing = "a header and a source file";
    for (auto& [name, text] : files)
      if (name.ends_with(".pb.h")) missing = change_header(text, names);
    for (auto& [name, text] : files)
      if (missing.empty() && name.ends_with(".pb.cc")) missing = change_source(text, names);
    return missing;
  }
};

}  // namespace

int main(int argc, char** argv) {
  SluiceGenerator generator;
  return google::protobuf::compiler::PluginMain(argc, argv, &generator);
}
