// What the CLI's exit codes mean. Documented in docs/cli.md; scripts rely on them.
import { ErrorCode, OutliveError } from "../job/errors.ts";

export const ExitCode = {
  ok: 0,
  /** It failed, or `--check` found something wrong. */
  failure: 1,
  /** The words of the call are off: an unknown command or option, an unusable configuration. */
  usage: 2,
  /** No such job, incident, kind or worker. */
  notFound: 3,
  /** The job is in a state in which that can't be done. */
  wrongState: 4,
} as const;

export function exitCodeOf(thrown: unknown): number {
  if (!(thrown instanceof OutliveError)) return ExitCode.failure;
  switch (thrown.code) {
    case ErrorCode.optionInvalid:
    case ErrorCode.keyInvalid:
      return ExitCode.usage;
    case ErrorCode.notFound:
    case ErrorCode.kindUnknown:
      return ExitCode.notFound;
    case ErrorCode.wrongState:
    case ErrorCode.keyHeld:
      return ExitCode.wrongState;
    default:
      return ExitCode.failure;
  }
}
