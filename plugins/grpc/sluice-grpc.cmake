# sluice_grpc_generate(TARGET FILE.proto... [ALL_BYTES] [IMPORT_DIRS DIR...])
# Adds to TARGET the messages that protoc-gen-sluice makes of each file, and gRPC's stubs. A file is
# named from the source folder, and included as its name is: "FILE.grpc.pb.h". ALL_BYTES: all
# `bytes` fields can hold tensors, not only those with [(sluice.v1.shared) = true]. IMPORT_DIRS:
# where other files are that these import; TARGET must have the code of those, too. Links
# sluice::grpc_tensors.
function(sluice_grpc_generate target)
  cmake_parse_arguments(PARSE_ARGV 1 arg ALL_BYTES "" IMPORT_DIRS)
  if(NOT TARGET sluice::protoc-gen-sluice)
    message(FATAL_ERROR "sluice was built without protoc-gen-sluice; on Debian: apt-get install protobuf-compiler libprotoc-dev; then configure and build sluice again")
  endif()
  find_program(SLUICE_PROTOC protoc)
  find_program(SLUICE_GRPC_CPP_PLUGIN grpc_cpp_plugin)
  if(NOT SLUICE_PROTOC OR NOT SLUICE_GRPC_CPP_PLUGIN)
    message(FATAL_ERROR "protoc or grpc_cpp_plugin is missing; on Debian: apt-get install protobuf-compiler protobuf-compiler-grpc")
  endif()
  # Of an installed sluice the .proto files lie beside its headers.
  set(protos ${SLUICE_PROTO_DIR})
  if(NOT protos)
    find_path(protos sluice/options.proto NO_CACHE REQUIRED HINTS ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../../../include ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../../../../include)
  endif()
  set(imports ${CMAKE_CURRENT_SOURCE_DIR} ${arg_IMPORT_DIRS} ${protos})
  list(TRANSFORM imports PREPEND -I)
  set(flag)
  if(arg_ALL_BYTES)
    set(flag all_bytes:)
  endif()
  foreach(proto IN LISTS arg_UNPARSED_ARGUMENTS)
    string(REGEX REPLACE "\\.proto$" "" base ${proto})
    list(TRANSFORM base PREPEND ${CMAKE_CURRENT_BINARY_DIR}/)
    set(outputs ${base}.pb.cc ${base}.pb.h ${base}.grpc.pb.cc ${base}.grpc.pb.h)
    add_custom_command(
      OUTPUT ${outputs}
      COMMAND ${SLUICE_PROTOC} ${imports} --plugin=protoc-gen-sluice=$<TARGET_FILE:sluice::protoc-gen-sluice>
        --plugin=protoc-gen-grpc=${SLUICE_GRPC_CPP_PLUGIN} --sluice_out=${flag}${CMAKE_CURRENT_BINARY_DIR} --grpc_out=${CMAKE_CURRENT_BINARY_DIR} ${proto}
      DEPENDS ${proto} sluice::protoc-gen-sluice)
    target_sources(${target} PRIVATE ${outputs})
  endforeach()
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
  target_link_libraries(${target} PRIVATE sluice::grpc_tensors)
endfunction()
