// One order of a job. What is asked for is written down before it is asked for, and so is what was answered: what was answered must be there
// in the end, what was not may be.
import type { EnqueueOptions, JobContract } from "../../../src/index.ts";
import type { Ordered, Told } from "./history.ts";

export interface Order {
  readonly contract: JobContract<never, unknown>;
  readonly input: unknown;
  readonly options: EnqueueOptions & { readonly id: string };
}

/** A client or an engine. */
export interface Shop {
  enqueue(
    contract: JobContract<never, unknown>,
    input: never,
    options: EnqueueOptions,
  ): Promise<{ readonly id: string; readonly created: boolean }>;
}

/** Any contract, whatever its types say: an order is drawn when the program runs. */
export function orderOf(contract: object, input: unknown, options: Order["options"]): Order {
  return { contract: contract as JobContract<never, unknown>, input, options };
}

/** False: it was refused, or that is not known. The same order may be placed again: its id adds nothing. */
export async function placeOrder(
  shop: Shop,
  { contract, input, options }: Order,
  tell: (told: Told) => void,
): Promise<boolean> {
  const { id } = options;
  const { amount, failures } = input as Partial<Ordered>;
  const { dedupeKey } = options;
  // What is undefined is not in the line.
  tell({ what: "ask", id, kind: contract.name, dedupeKey, amount, failures } as Told);
  try {
    const { id: got, created } = await shop.enqueue(contract, input as never, options);
    tell({ what: "ack", id, got, created });
    return true;
  } catch (thrown) {
    tell({ what: "refused", id, code: (thrown as { code?: string }).code ?? String(thrown) });
    return false;
  }
}
