/* Runs Jinja templates of chats, in the part of the language that published templates need for the
 * messages of users and assistants. Anything else is an error, so no text is ever guessed. */
#ifndef KVD_MODEL_TEXT_JINJA_H
#define KVD_MODEL_TEXT_JINJA_H

#include <jansson.h>

#include "common/err.h"

/* Returns what a template writes, allocated, as jinja2 does under apply_chat_template's settings
 * (trim_blocks, lstrip_blocks, loop controls).
 *
 * `names` are the variables of the template, which it does not change. If `strftime_now` is among
 * them, its text is what strftime_now('%Y-%m-%d') returns.
 *
 * Returns NULL and fills *err if the template raises an exception or uses a feature that is not
 * supported. */
char *kvd_jinja_render(const char *text, json_t *names, kvd_err *err);

#endif
