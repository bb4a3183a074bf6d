/* Runs Jinja templates of chats, in the part of the language that published templates need for the
 * messages of users and assistants. Anything else is an error, so no text is ever guessed. */
#ifndef KVD_MODEL_TEXT_JINJA_H
#define KVD_MODEL_TEXT_JINJA_H

#include <jansson.h>

#include "common/err.h"

/* Renders a chat template as apply_chat_template of Transformers does. Returns the text, which the
 * caller frees.
 *
 * - names: values of the template's variables; the function does not change them. If `strftime_now`
 *   is among them, its text is what strftime_now('%Y-%m-%d') returns.
 *
 * Returns NULL and fills *err if the template raises an exception or uses a feature that is not
 * supported. */
char *kvd_jinja_render(const char *text, json_t *names, kvd_err *err);

#endif
