"""Starts a session, follows its events, answers its permission request, and kills it with the receipt."""

import os

from agent_proxy_client import Client

with Client(os.environ["AGENT_PROXY_URL"], token=os.environ["AGENT_PROXY_TOKEN"]) as client:
    session = client.start(agent="acp", command=["my-agent"], cwd=os.getcwd())
    session.prompt("ask May I?")
    for event in session.events():
        match event["type"]:
            case "stream:text":
                print(event["payload"]["text"], end="")
            case "permission:requested":
                print(event["payload"]["title"])
                session.answer(event["payload"]["id"], "allow", by="ada")
            case "stream:complete":
                break
    receipt = session.kill()
    print(len(receipt["survivors"]), "survivors, proof:", receipt["proof"])
