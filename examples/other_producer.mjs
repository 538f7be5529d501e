// A producer in another language: it asks a Workhorse program to enqueue, over HTTP.
//
//     node other_producer.mjs https://orders.example.org/ 7 saddle
//
// On the other side stands `produce` of on_lambda.py, or the application of web_producer.py.

const [url, number, item] = process.argv.slice(2);

async function enqueue(order) {
  // The key makes it safe to ask again when an answer was lost: the same key is the same run.
  const request = {
    method: "POST",
    headers: {"content-type": "application/json", "idempotency-key": `order-${order.number}`},
    body: JSON.stringify(order),
  };
  for (let attempt = 1; ; attempt++) {
    try {
      const answer = await fetch(url, {...request, signal: AbortSignal.timeout(10_000)});
      if (answer.status === 202) return (await answer.json()).run_id;
      if (answer.status < 500) throw Object.assign(new Error(await answer.text()), {final: true});
    } catch (error) {
      if (error.final || attempt === 5) throw error;
    }
    if (attempt === 5) throw new Error("the producer does not answer");
    await new Promise((resolve) => setTimeout(resolve, 100 * 2 ** attempt));
  }
}

console.log(await enqueue({number: Number(number), item}));
