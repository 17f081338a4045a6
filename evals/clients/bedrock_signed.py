"""Runs clients of Amazon Bedrock that sign their requests through a proxy that signs them again.

    python bedrock_signed.py PYTHON FOLDLINE [TURNS [WINDOW [CLIENT..]]]   both Pythons have boto3 and anthropic[bedrock] installed

The clients sign with invented keys. The server of `bedrock.py` checks each signature with botocore, over the body that it
received and with the keys of the proxy; a wrong one is in the column `broken`.
"""

import re

import bedrock
import session
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
REGION, TOKEN = "eu-west-1", "token/of+the=proxy"
FIELDS = re.compile(rf"AWS4-HMAC-SHA256 Credential={KEY}/(\d+)/{REGION}/bedrock/aws4_request, SignedHeaders=(.*), Signature=(.*)")
BEARER = 'api_key=os.environ["AWS_BEARER_TOKEN_BEDROCK"]'
AGENTS = {
    f"{name}, signed": program.replace(BEARER, 'aws_access_key="AKIDCLIENT", aws_secret_key="unused"')
    for name, program in bedrock.AGENTS.items()
}


def is_signed(method, path, headers, data):
    """Returns true if a request has the signature that botocore computes for it with the keys of the proxy."""
    found = FIELDS.fullmatch(headers.get("Authorization") or "")
    if not found or headers.get("X-Amz-Security-Token") != TOKEN:
        return False
    signed = {name: headers[name] for name in found[2].split(";")}
    request = AWSRequest(method=method, url=f"http://{headers['Host']}{path}", headers=signed, data=data)
    request.context["timestamp"] = headers["X-Amz-Date"]
    signer = SigV4Auth(Credentials(KEY, SECRET, TOKEN), "bedrock", REGION)
    to_sign = signer.string_to_sign(request, signer.canonical_request(request))
    return signer.signature(to_sign, request) == found[3]


class SignedBedrock(bedrock.Bedrock):
    """The server with signatures in place of API keys."""

    def answer(self, method, path, headers, data):
        if path.startswith("/model/") and not is_signed(method, path, headers, data):
            self.log["broken"] = sorted({"signature", *self.log["broken"]})
        return super().answer(method, path, {"Authorization": "Bearer checked above"}, data)


def run(python, foldline, name, way, turns, window):
    server = SignedBedrock(turns, window)
    environment = session.environment_without("AWS_", "ANTHROPIC_")
    keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": TOKEN}
    client_keys = {"AWS_ACCESS_KEY_ID": "AKIDCLIENT", "AWS_SECRET_ACCESS_KEY": "unused"}
    with session.serve(server.answer, [("x-amzn-errortype", "ValidationException")]) as upstream:
        arguments = ["--window", str(window), "--bedrock-auth", f"aws:{REGION}"]
        with session.proxy(foldline, upstream, *arguments, environment=environment | keys) as (base, folder):
            asked = [base, bedrock.MODEL, window, turns, way]
            is_done = session.run_agent(python, AGENTS[name], asked, environment | client_keys, folder)
    return server.row(name, way, is_done)


if __name__ == "__main__":
    session.main(AGENTS, run)
