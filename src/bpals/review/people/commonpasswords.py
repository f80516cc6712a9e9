"""Passwords that anybody would guess: the words that lists of leaked passwords begin with, and those of a clinic.

They stand without the digits and signs that people put around them; `passwords.objection` takes those off.
"""

from __future__ import annotations

COMMON = frozenset(
    """
    password passwort passw0rd pass passwd motdepasse contrasena contraseña senha parola wachtwoord haslo
    lozinka salasana admin administrator adminadmin root toor guest user username login logon letmein letmeinnow
    welcome willkommen bienvenue bienvenido benvenuto changeme changemenow change changeit default secret
    topsecret geheim temp temporary temppass test tester testing testtest testuser demo sample example trustno
    access master superman batman spiderman ironman starwars pokemon princess princesa princesse sunshine
    iloveyou ilove iloveu loveyou lovely loveme forever football fussball futbol baseball basketball hockey
    soccer tennis golf dragon monkey shadow michael michelle jennifer jessica jordan daniel thomas andrew joshua
    matthew robert charlie charles ashley amanda nicole hannah samantha elizabeth alexander anthony william
    jonathan christopher christian benjamin maggie buster tigger ginger pepper bailey cookie hunter ranger
    harley mustang ferrari porsche corvette mercedes yamaha honda toyota computer internet windows microsoft
    google facebook instagram linkedin samsung android iphone apple macintosh linux ubuntu server database
    oracle cisco router network security freedom whatever nothing something anything everything blink blinkone
    flower butterfly rainbow summer winter spring autumn january february march april june july august september
    october november december monday tuesday wednesday thursday friday saturday sunday hello helloworld hallo
    bonjour goodbye killer hacker ninja pirate wizard merlin gandalf matrix phoenix falcon eagle tiger lion
    panther dolphin penguin elephant chocolate banana orange cherry strawberry pineapple coffee cheese chicken
    pizza qwerty qwertyuiop qwertz azerty asdfgh asdfghjkl zxcvbn zxcvbnm abcdef abcdefg abcdefgh abcd abc
    aaaaaa xxxxxx london paris berlin madrid newyork chicago boston texas california america england germany
    france spain italy brazil canada australia india mexico china japan liverpool arsenal chelsea barcelona
    realmadrid juventus manchester united steelers cowboys yankees lakers patriots eagles packers hospital
    klinik clinic klinikum krankenhaus ziekenhuis hopital doctor doktor docteur medico medicine medical
    radiology radiologie radiologia radiologist xray xrays chestxray chest thorax lung lungs pulmonary film
    films reader reading readingroom adjudicator patient patients dicom pacs health healthcare nurse surgeon
    surgery emergency university universitat universite student professor research researcher science labels
    bpals nih chestxrayfourteen correcthorsebatterystaple correct horse battery staple thisisapassword
    thisismypassword mypassword yourpassword nopassword newpassword oldpassword password1password
    passwordpassword adminpassword rootpassword userpassword testpassword secretpassword letmeinplease openup
    opensesame sesame abracadabra hocuspocus supersecret superuser superadmin sysadmin systemadmin poweruser
    manager service support helpdesk office company business
    """.split()  # noqa: SIM905 -- as words they can be read
)
