// Compile-time test of the tables of settings: the option types have exactly the keys of the tables, and each option has the type
// of the values that its row takes. Checked by `npm run typecheck`; nothing here runs.
import type { OutliveConfig } from "../../src/engine/config.ts";
import type {
  BackoffOptions,
  EngineOptions,
  EngineSettingKey,
  KindOptions,
  WorkOptions,
} from "../../src/engine/options.ts";
import type { KIND_OPTIONS } from "../../src/engine/kind-options.ts";
import type { PROGRAM_OPTIONS, Setting, SETTINGS, ValueOf, WORKER_OPTIONS } from "../../src/engine/settings.ts";
import { isTrue, type Same } from "./same.ts";

type Table = Readonly<Record<string, Setting>>;

/** The keys of options, dotted, down to those that are rows; a key that should be a row and is not appears, too. */
type KeysOf<Options, Row, Prefix extends string = ""> = {
  [Key in keyof Options & string]-?: `${Prefix}${Key}` extends Row
    ? `${Prefix}${Key}`
    : NonNullable<Options[Key]> extends infer Group extends object
      ? KeysOf<Group, Row, `${Prefix}${Key}.`>
      : `${Prefix}${Key}`;
}[keyof Options & string];

type At<Options, Key> = Key extends keyof Options
  ? NonNullable<Options[Key]>
  : Key extends `${infer Group extends keyof Options & string}.${infer Rest}`
    ? At<NonNullable<Options[Group]>, Rest>
    : "missing";

/** The keys whose option has another type than its row. What only code can make has its type in the interface alone. */
type Differing<Options, Rows extends Table> = {
  [Key in keyof Rows]: Rows[Key] extends { readonly type: "code" | "blobs" | "broker" }
    ? never
    : Same<At<Options, Key>, ValueOf<Rows[Key]>> extends true
      ? never
      : Key;
}[keyof Rows];

type Agree<Options, Rows extends Table> =
  Same<KeysOf<Options, keyof Rows>, keyof Rows> extends true ? Same<Differing<Options, Rows>, never> : false;

type Program = Pick<typeof SETTINGS, EngineSettingKey> & typeof PROGRAM_OPTIONS;
type Backoff = Extract<keyof typeof KIND_OPTIONS, `retry.backoff.${string}`>;

isTrue<Agree<OutliveConfig, typeof SETTINGS>>();
isTrue<Agree<EngineOptions, { [Key in keyof Program]: Program[Key] }>>();
isTrue<Agree<WorkOptions, typeof WORKER_OPTIONS>>();
isTrue<
  Agree<
    KindOptions & {
      readonly input?: unknown;
      readonly output?: unknown;
      readonly limits?: readonly unknown[];
      readonly fair?: unknown;
    },
    Omit<typeof KIND_OPTIONS, Backoff>
  >
>();
isTrue<Agree<{ readonly retry: { readonly backoff: BackoffOptions } }, Pick<typeof KIND_OPTIONS, Backoff>>>();

// The check can fail: a key too many, one too few, and another type.
type Few = Omit<OutliveConfig, "poll">;
// @ts-expect-error a row without an option
isTrue<Agree<Few, typeof SETTINGS>>();
// @ts-expect-error an option without a row
isTrue<Agree<OutliveConfig & { readonly pull?: string }, typeof SETTINGS>>();
// @ts-expect-error another type than the row's
isTrue<Agree<Few & { readonly poll?: number }, typeof SETTINGS>>();
// @ts-expect-error an option in a group without a row
isTrue<Agree<Omit<OutliveConfig, "sqlite"> & { readonly sqlite?: { readonly mode?: string } }, typeof SETTINGS>>();
