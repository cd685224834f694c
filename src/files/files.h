/* SPDX-License-Identifier: Apache-2.0 */
/* files/: file formats as plain data: what a file says and how it is written. Knows nothing of
 * pages, sequences or models. Any thread may call; what a function opens belongs to one thread.
 *
 *     safetensors.h   headers of safetensors; a front header, too
 *     prompt_file.h   prompt caches of mlx-lm (prompt_file*.c)
 */
#ifndef KVASIR_FILES_H
#define KVASIR_FILES_H

#include "files/prompt_file.h"
#include "files/safetensors.h"

#endif
