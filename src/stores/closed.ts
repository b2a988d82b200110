// What a store says that was closed, whichever it is.
import { ErrorCode, OutliveError } from "../core/errors.ts";

export function closed(): OutliveError {
  return new OutliveError(
    ErrorCode.closed,
    "The store is closed.",
    "Open it again, or await what you started before you close it.",
  );
}
