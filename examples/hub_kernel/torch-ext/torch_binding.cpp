// Lets Python import the library under the name that kernel-builder gives it; csrc/bindings.cpp holds the schemas.
#include "registration.h"

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
