// From contracts to what a worker runs: handlers, parsers, settings with the engine's defaults; and the ids of children.
import { createHash } from "node:crypto";
import { unknownKind } from "./clients.ts";
import type { WorkOptions } from "./engine/options.ts";
import { settingsWithDefaults } from "./contract.ts";
import type { AnyContract } from "./core/contract.ts";
import { invalidInput } from "./core/enqueue.ts";
import { ErrorCode, OutliveError } from "./core/errors.ts";
import type { CrashAction, JobDraft } from "./core/job.ts";
import type { Json } from "./core/json.ts";
import type { RunnableKind } from "./core/kind.ts";

/** The kinds that a worker of this process runs: those of `only`, or all that have a handler. */
export function runnableKinds(
  contracts: ReadonlyMap<string, AnyContract>,
  only: WorkOptions["only"],
  defaults: { readonly onCrash: CrashAction; readonly maxCrashes: number },
): ReadonlyMap<string, RunnableKind> {
  const runnable = new Map<string, RunnableKind>();
  for (const name of only?.map((kind) => kind.name) ?? [...contracts.keys()]) {
    const contract = contracts.get(name);
    if (!contract) throw unknownKind(name, contracts);
    const { handler, schema, backoff } = contract;
    if (!handler) {
      if (only)
        throw new OutliveError(
          ErrorCode.kindUnknown,
          `The kind ${name} has no handler in this process.`,
          "Import the module that calls `.handle` before you start the worker.",
          { kind: name },
        );
      continue;
    }
    runnable.set(name, {
      settings: settingsWithDefaults(contract, defaults),
      parse: schema && parser(name, schema),
      handler,
      delayMs: backoff,
    });
  }
  if (runnable.size === 0)
    throw new OutliveError(
      ErrorCode.kindUnknown,
      "This worker has nothing to run: none of the jobs has a handler here.",
      "Pass `jobs` to open() and import the modules that call `.handle`.",
    );
  return runnable;
}

/** The id of a child: a hash of its parent and its content, the same in every attempt. */
export function childId(seed: string): string {
  return `c${createHash("sha256").update(seed).digest("hex").slice(0, 31)}`;
}

/** What tells children of one parent apart. */
export function contentOf({ kind, input, dedupeKey }: JobDraft): string {
  return JSON.stringify([kind, input, dedupeKey]);
}

/** The stored input through the schema, as the handler sees it. */
function parser(kind: string, schema: NonNullable<AnyContract["schema"]>): (input: Json) => unknown {
  return (input) => {
    const unwrap = (result: { issues?: readonly { message: string }[] | undefined; value?: unknown }): unknown => {
      if (result.issues && result.issues.length > 0) throw invalidInput(kind, result.issues);
      return result.value;
    };
    const result = schema["~standard"].validate(input);
    return result instanceof Promise ? result.then(unwrap) : unwrap(result);
  };
}
