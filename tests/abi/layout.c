/* Compiles only while the ABI is the pinned one; prints it, for ctypes_layout.py to compare with. */
#include <stddef.h>
#include <stdio.h>

#include "kdtree/kdtree.h"

#define FIELD_SIZE(block, field) sizeof(((block*)0)->field)

#define BLOCK(block, size) _Static_assert(sizeof(block) == (size), "size of " #block);
#define FIELD(block, field, offset, size)                                             \
  _Static_assert(offsetof(block, field) == (offset), "offset of " #block "." #field); \
  _Static_assert(FIELD_SIZE(block, field) == (size), "size of " #block "." #field);
#define CONSTANT(name, value) _Static_assert((name) == (value), #name);
#include "layout.inc"
#undef BLOCK
#undef FIELD
#undef CONSTANT

int main(void) {
#define BLOCK(block, size) printf("block %s %zu\n", #block, sizeof(block));
#define FIELD(block, field, offset, size) \
  printf("field %s %s %zu %zu\n", #block, #field, offsetof(block, field), FIELD_SIZE(block, field));
#define CONSTANT(name, value) printf("constant %s %d\n", #name, (int)(name));
#include "layout.inc"
  return 0;
}
