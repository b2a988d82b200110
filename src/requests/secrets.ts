// Secrets by reference. What a contract holds is a name; the value is asked for at each sending, kept for a minute at most, and appears in no row, error,
// event or log.
import { ErrorCode, OutliveError } from "../job/errors.ts";

/** Stands for a secret in headers, queries, signatures and certificates. */
export class Secret {
  /** The name under which its value is looked up. */
  readonly name: string;
  readonly #prefix: string;

  /** @internal */
  constructor(name: string, prefix: string) {
    this.name = name;
    this.#prefix = prefix;
  }

  /** What precedes the value, such as `Bearer `. */
  get prefix(): string {
    return this.#prefix;
  }

  /** Also what JSON and logs see. */
  toString(): string {
    return `[secret ${this.name}]`;
  }

  /** The same as `toString`: never the value. */
  toJSON(): string {
    return this.toString();
  }
}

/** A secret by its name in `open({ secrets })`. `prefix` comes before its value: `secret("TOKEN", { prefix: "Bearer " })`. */
export function secret(
  name: string,
  options: {
    /** What precedes the value. Default: nothing. */
    readonly prefix?: string;
  } = {},
): Secret {
  if (typeof name === "string" && name.length > 0 && name.length <= 255) return new Secret(name, options.prefix ?? "");
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `A secret is named ${JSON.stringify(name)}.`,
    "Use a name of 1 to 255 characters, by which open({ secrets }) has a value.",
  );
}

/** Where values come from: by name, or one function for all names. */
export type SecretSource =
  | Readonly<Record<string, string | (() => string | Promise<string>)>>
  | ((name: string) => string | undefined | Promise<string | undefined>);

/** How long a value is used before it is asked for again. */
const KEPT_MS = 60_000;
/** A call of the source that takes longer is not waited for by those who come then. */
const SHARED_MS = 5_000;

export class Secrets {
  readonly #source: SecretSource;
  readonly #mono: () => number;
  readonly #kept = new Map<string, { readonly value: string; readonly untilMono: number }>();
  /** Many requests need the same value when its minute ends: its source is asked once, and again if it does not answer. */
  readonly #asking = new Map<string, { readonly value: Promise<string>; readonly untilMono: number }>();

  constructor(source: SecretSource, mono: () => number) {
    this.#source = source;
    this.#mono = mono;
  }

  async value({ name, prefix }: Secret): Promise<string> {
    const kept = this.#kept.get(name);
    if (kept && kept.untilMono > this.#mono()) return prefix + kept.value;
    const known = this.#asking.get(name);
    if (known && known.untilMono > this.#mono()) return prefix + (await known.value);
    const asking = { value: this.#ask(name), untilMono: this.#mono() + SHARED_MS };
    this.#asking.set(name, asking);
    try {
      return prefix + (await asking.value);
    } finally {
      if (this.#asking.get(name) === asking) this.#asking.delete(name);
    }
  }

  async #ask(name: string): Promise<string> {
    const source = this.#source;
    let value: unknown;
    try {
      const own = typeof source === "object" && Object.hasOwn(source, name) ? source[name] : undefined;
      const given = typeof source === "function" ? source(name) : own;
      value = await (typeof given === "function" ? given() : given);
    } catch {
      // The cause may hold the value.
      throw missing(name, "its function failed");
    }
    if (typeof value !== "string" || value.length === 0)
      throw missing(name, value === undefined ? "open({ secrets }) has none of that name" : "its value is not a text");
    this.#kept.set(name, { value, untilMono: this.#mono() + KEPT_MS });
    return value;
  }
}

function missing(name: string, why: string): OutliveError {
  return new OutliveError(
    ErrorCode.secretMissing,
    `The secret ${JSON.stringify(name)} has no value: ${why}.`,
    "Pass it to open({ secrets: { NAME: () => value } }). The request is tried again.",
    { secret: name },
  );
}
