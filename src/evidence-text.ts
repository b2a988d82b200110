// What is kept of the last words of a process, in the store and in reports. A process that dies of an uncaught error prints whatever
// its program put into the message, so this passes the same net as the log.
import { oneLine, storableText } from "./core/text.ts";
import { redactText } from "./telemetry/redact.ts";

/** One line without secrets, at most `maxLength` long. Cut last: the net would not know half of an address with a password in it. */
export function evidenceText(words: string, maxLength: number): string {
  return storableText(oneLine(redactText(words)), maxLength);
}
