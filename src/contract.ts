// `job()`: how users write the contract of a kind.
import type { StandardSchemaV1 } from "@standard-schema/spec";
import { kindChoice, type KindOptions } from "./engine/kind-options.ts";
import { JobContract } from "./core/contract.ts";
import { ErrorCode, OutliveError } from "./core/errors.ts";
import type { Json, JsonOf } from "./core/json.ts";
import type { CrashAction, KindSettings } from "./core/job.ts";

/** The schema itself if its input is JSON by type; a message for the compiler if it is not. */
type JsonSchema<S extends StandardSchemaV1> = [StandardSchemaV1.InferInput<S>] extends [
  JsonOf<StandardSchemaV1.InferInput<S>>,
]
  ? S
  : InputMustBeJson;
export interface InputMustBeJson {
  readonly "the input of a job is stored as JSON: no Date, Buffer, bigint, Map, Set or function in it": never;
}

/** Declares a kind of job. Safe to import anywhere; attach the handler with `.handle` where workers run. */
export function job<S extends StandardSchemaV1>(
  name: string,
  options: KindOptions & { readonly input: S & JsonSchema<S> },
): JobContract<StandardSchemaV1.InferInput<S>, StandardSchemaV1.InferOutput<S>>;
export function job<In = Json>(
  name: string,
  options?: KindOptions & { readonly input?: never },
): [In] extends [JsonOf<In>] ? JobContract<In, In> : InputMustBeJson;
export function job(name: string, options: KindOptions & { readonly input?: unknown } = {}): JobContract<never, never> {
  const choice = kindChoice(name, options);
  const schema = options.input;
  if (schema !== undefined && typeof (schema as StandardSchemaV1)?.["~standard"]?.validate !== "function") {
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `The input of job ${name} is not a schema.`,
      "Pass a Standard Schema: zod, valibot, arktype and others make them.",
      { kind: name },
    );
  }
  const contract = new JobContract<never, never>(
    choice.settings,
    (schema as StandardSchemaV1<never, never> | undefined) ?? null,
    choice.backoff,
  );
  openChoices.set(contract, choice.open);
  return contract;
}

/** What each contract left to the engine's defaults. Not part of the contract: two engines may differ. */
const openChoices = new WeakMap<object, { readonly onCrash: boolean; readonly crashes: boolean }>();

export function settingsWithDefaults(
  contract: JobContract<never, never>,
  defaults: { onCrash: CrashAction; maxCrashes: number },
): KindSettings {
  const open = openChoices.get(contract);
  const { settings } = contract;
  return {
    ...settings,
    onCrash: open?.onCrash ? defaults.onCrash : settings.onCrash,
    limits: open?.crashes ? { ...settings.limits, crashes: defaults.maxCrashes } : settings.limits,
  };
}
