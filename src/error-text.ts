// The parts of an error's text: `message` is what happened and the hint in one.
import type { OutliveError } from "./core/errors.ts";

/** What happened, without what to do about it. */
export function whatOf({ message, hint }: OutliveError): string {
  return hint !== "" && message.endsWith(hint) ? message.slice(0, -hint.length).trimEnd() : message;
}
